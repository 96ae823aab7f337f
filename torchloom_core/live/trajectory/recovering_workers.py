"""The workers of a recovery: the processes that were lost, and those that start."""

from dataclasses import dataclass, field

from torchloom_core.live.trajectory.recovery_phases import RankStart
from torchloom_core.live.trajectory.steps_of_workers import SlowSteps
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.start_phases import Start


@dataclass
class Process:
    """One incarnation of a worker; ``last_ns`` and the skew are of receipt.

    ``joined_ns``, ``terminated_ns``: when it was sent that command; the latter because it hung.
    """

    hello: Hello
    last_ns: int
    progress_ns: int
    skew_ns: int | None = None
    step: int = -1
    has_trained: bool = False
    ended_ns: int | None = None
    is_reported: bool = False
    joined_ns: int | None = None
    terminated_ns: int | None = None
    start: Start | None = None
    steps: SlowSteps = field(default_factory=SlowSteps)

    def stamped(self, stamp_ns: int, received_ns: int) -> None:
        """Compare a message's stamp with its receipt."""
        if stamp_ns:
            late_ns = received_ns - stamp_ns
            self.skew_ns = late_ns if self.skew_ns is None else min(self.skew_ns, late_ns)

    def at_ns(self, stamp_ns: int) -> int:
        """Return a moment of this process by the Weaver's clock."""
        return stamp_ns + (self.skew_ns or 0)

    def rank_start(self) -> RankStart | None:
        """Return its start, None before it has reported one."""
        if self.start is None:
            return None
        return RankStart(self.at_ns(self.start.began_ns), self.start.phase, self.start.seconds)


@dataclass
class OpenRecovery:
    """A recovery whose end may not be known yet."""

    group: str
    role: str
    lost: dict[str, Process]
    first: Process
    lost_ns: int
    known_ns: int | None
    cause: str
    is_certain: bool
    others: list[Process]
    failed: int = 0
    failed_ns: int = 0
    starts: dict[str, Process] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether a rank has committed its first step."""
        return any(one.start and not one.start.phase for one in self.starts.values())
