"""Position of a run in its steps; any number of committed steps is counted at once."""


class StepGrid:
    """Consecutive steps of equal length, delayed when the whole run stops.

    ``start_ns`` is the start of the current step, shifted by the stops in it, and ``into_ns`` the
    progress within it while the run stops. A step that ``is_spoiled`` will not be committed.
    ``to_save`` steps are left before the next periodic checkpoint is due.
    """

    __slots__ = (
        "_is_stepping",
        "_step_ns",
        "committed",
        "first_commit_ns",
        "into_ns",
        "is_spoiled",
        "start_ns",
        "to_save",
        "tried",
    )

    def __init__(self, step_ns: int, to_save: int) -> None:
        self._step_ns = step_ns
        self.to_save = to_save
        self.start_ns = self.into_ns = self.tried = self.committed = 0
        self.is_spoiled = self._is_stepping = False
        self.first_commit_ns: int | None = None

    def go_on(self, ts_ns: int) -> None:
        """Continue the stopped step, or begin one."""
        self.start_ns = ts_ns - self.into_ns
        self._is_stepping = True

    def stop(self, ts_ns: int) -> None:
        """Stop within the current step."""
        if self._is_stepping:
            self.into_ns = self.since_start_ns(ts_ns)
            self._is_stepping = False

    def drop(self) -> None:
        """Drop the current step, as no group is left."""
        self.is_spoiled = self._is_stepping = False
        self.into_ns = 0

    def since_start_ns(self, ts_ns: int) -> int:
        """Return the time since the start of the current step; count finished steps."""
        if not self._is_stepping:
            return self.into_ns
        if not self.is_spoiled and ts_ns - self.start_ns >= self._step_ns:
            steps = (ts_ns - self.start_ns) // self._step_ns
            if self.first_commit_ns is None:
                self.first_commit_ns = self.start_ns + self._step_ns
            self.start_ns += steps * self._step_ns
            self.committed += steps
            self._count(steps)
        return ts_ns - self.start_ns

    def end_spoiled(self, ts_ns: int) -> bool:
        """End a spoiled step, if it ends now."""
        if not self.is_spoiled or ts_ns - self.start_ns < self._step_ns:
            return False
        self.is_spoiled = False
        self.start_ns = ts_ns
        self._count(1)
        return True

    def boundary_ns(self, ts_ns: int) -> int:
        """Return the end of the current step, or now if it begins now."""
        into_ns = self.since_start_ns(ts_ns)
        return ts_ns + (self._step_ns - into_ns if into_ns or self.is_spoiled else 0)

    def save_due_ns(self, ts_ns: int) -> int:
        """Return when the next periodic checkpoint is due: after whole steps."""
        return self.start_ns + max(self.to_save, ts_ns > self.start_ns) * self._step_ns

    def _count(self, steps: int) -> None:
        self.tried += steps
        self.to_save -= steps
