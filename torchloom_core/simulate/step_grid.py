"""Where a run is in its steps; any number of clean ones is booked at once."""


class StepGrid:
    """Steps of equal length, one after the other, which move when the whole run stops.

    Attributes
    ----------
    start_ns : int
        When the present step began, were the run never to have stopped in it.
    into_ns : int
        How far into its step the run is while it stops.
    is_spoiled : bool
        Whether the present step will be committed by nobody.
    tried, committed : int
        Steps that ended, and those that were kept.
    to_save : int
        Steps before the next periodic checkpoint is due.
    first_commit_ns : int, optional
        When the first step was committed.
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
        """Take up the step that was stopped, or begin one."""
        self.start_ns = ts_ns - self.into_ns
        self._is_stepping = True

    def stop(self, ts_ns: int) -> None:
        """Stop in the present step."""
        if self._is_stepping:
            self.into_ns = self.since_start_ns(ts_ns)
            self._is_stepping = False

    def drop(self) -> None:
        """Forget the present step: nobody is left who works on it."""
        self.is_spoiled = self._is_stepping = False
        self.into_ns = 0

    def since_start_ns(self, ts_ns: int) -> int:
        """Return how far into its step the run is; steps that have ended are booked."""
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
        """Return when the present step ends, or now if it begins now."""
        into_ns = self.since_start_ns(ts_ns)
        return ts_ns + (self._step_ns - into_ns if into_ns or self.is_spoiled else 0)

    def save_due_ns(self, ts_ns: int) -> int:
        """Return when the next periodic checkpoint is due: after whole steps."""
        return self.start_ns + max(self.to_save, ts_ns > self.start_ns) * self._step_ns

    def _count(self, steps: int) -> None:
        self.tried += steps
        self.to_save -= steps
