"""Position of a run in its steps, and the stall before the next one."""

from typing import Literal

from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.scenario import Bucket, JobSpec

_NONE: tuple[int, Bucket] = (0, "migrate")


class Stalls:
    """The stall of the training groups before the next step.

    One quorum covers all changes, so only the longest stall counts.
    """

    def __init__(self, job: JobSpec) -> None:
        self._lasts: dict[str, tuple[int, Bucket]] = {
            "join": (to_ns(job.join_stall_s), "migrate"),
            "leave": (to_ns(job.leave_stall_s), "migrate"),
            "kill": (to_ns(job.kill_stall_s), "detect"),
        }
        self._due = _NONE

    @property
    def is_due(self) -> bool:
        """Whether there is a stall before the next step."""
        return self._due[0] > 0

    def add(self, change: Literal["join", "leave", "kill"]) -> None:
        """Add the stall for groups that join, leave in order, or died."""
        self._due = max(self._due, self._lasts[change])

    def take(self) -> tuple[Bucket, int]:
        """Return bucket and duration of the stall, and reset it."""
        (lasts_ns, bucket), self._due = self._due, _NONE
        return bucket, lasts_ns


class StepGrid:
    """Consecutive steps of equal length, delayed when the whole run stops.

    Any number of committed steps is counted at once.
    ``start_ns`` is the start of the current step, shifted by the stops in it, and ``into_ns`` the
    progress within it while the run stops. A step that ``is_spoiled`` will not be committed.
    ``to_save`` steps are left before the next periodic checkpoint is due.
    """

    def __init__(self, step_ns: int, to_save: int) -> None:
        self._step_ns = step_ns
        self.to_save = to_save
        self.start_ns = self.into_ns = self.committed = 0
        self.is_spoiled = self._is_stepping = False

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
            self.start_ns += steps * self._step_ns
            self.committed += steps
            self.to_save -= steps
        return ts_ns - self.start_ns

    def end_spoiled(self, ts_ns: int) -> bool:
        """End a spoiled step, if it ends now."""
        if not self.is_spoiled or ts_ns - self.start_ns < self._step_ns:
            return False
        self.is_spoiled = False
        self.start_ns = ts_ns
        self.to_save -= 1
        return True

    def boundary_ns(self, ts_ns: int) -> int:
        """Return the end of the current step, or now if it begins now."""
        into_ns = self.since_start_ns(ts_ns)
        return ts_ns + (self._step_ns - into_ns if into_ns or self.is_spoiled else 0)

    def save_due_ns(self, ts_ns: int) -> int:
        """Return when the next periodic checkpoint is due: after whole steps."""
        return self.start_ns + max(self.to_save, ts_ns > self.start_ns) * self._step_ns
