"""Stalls of the training groups when others join, leave or die."""

from torchloom_core.lab.simulate.event_queue import to_ns
from torchloom_core.lab.simulate.scenario import Bucket, JobSpec

_NONE: tuple[int, Bucket] = (0, "migrate")


class Stalls:
    """The stall before the next step.

    One quorum covers all changes, so only the longest stall counts.
    """

    def __init__(self, job: JobSpec) -> None:
        self._join: tuple[int, Bucket] = (to_ns(job.join_stall_s), "migrate")
        self._leave: tuple[int, Bucket] = (to_ns(job.leave_stall_s), "migrate")
        self._kill: tuple[int, Bucket] = (to_ns(job.kill_stall_s), "detect")
        self._due = _NONE

    @property
    def is_due(self) -> bool:
        """Whether there is a stall before the next step."""
        return self._due[0] > 0

    def join(self) -> None:
        """Add the stall for groups that join."""
        self._due = max(self._due, self._join)

    def leave(self) -> None:
        """Add the stall for a group that leaves in order."""
        self._due = max(self._due, self._leave)

    def kill(self) -> None:
        """Add the stall for a group that died."""
        self._due = max(self._due, self._kill)

    def take(self) -> tuple[Bucket, int]:
        """Return bucket and duration of the stall, and reset it."""
        (lasts_ns, bucket), self._due = self._due, _NONE
        return bucket, lasts_ns
