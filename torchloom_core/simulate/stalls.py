"""How long the groups that go on stand still when others come, leave or die."""

from torchloom_core.simulate.event_queue import to_ns
from torchloom_core.simulate.scenario import Bucket, JobSpec

_NONE: tuple[int, Bucket] = (0, "migrate")


class Stalls:
    """The stall that is due before the next step.

    One quorum settles all that has changed, so the longest stall stands for all.
    """

    def __init__(self, job: JobSpec) -> None:
        self._join: tuple[int, Bucket] = (to_ns(job.join_stall_s), "migrate")
        self._leave: tuple[int, Bucket] = (to_ns(job.leave_stall_s), "migrate")
        self._kill: tuple[int, Bucket] = (to_ns(job.kill_stall_s), "detect")
        self._due = _NONE

    @property
    def is_due(self) -> bool:
        """Whether anybody stands still before the next step."""
        return self._due[0] > 0

    def join(self) -> None:
        """Wait for groups that join."""
        self._due = max(self._due, self._join)

    def leave(self) -> None:
        """Wait for one that leaves in order."""
        self._due = max(self._due, self._leave)

    def kill(self) -> None:
        """Wait until it is known that one has died."""
        self._due = max(self._due, self._kill)

    def take(self) -> tuple[Bucket, int]:
        """Return the bucket of the stall that is due and how long it is; none is due then."""
        (lasts_ns, bucket), self._due = self._due, _NONE
        return bucket, lasts_ns
