"""Output of the fleet model: workers, events and results."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.simulate.scenario import Bucket, Hit

MemberState = Literal["training", "joining", "paused", "standby", "left", "gone"]
"""``joining``: it rejoins, and does not train yet; ``left``: it left in order; ``gone``: its
process died."""

Kind = Literal[
    "fault",  # a hit of a node of the allocation, or of the job
    "hit_missed",  # a hit of a node that a migration had left in time
    "worker_lost",  # a process died; ``detail`` is the worker
    "down",  # the run, or a group of it, stopped
    "restarted",  # it trains again
    "saved",  # a local checkpoint
    "committed",  # a durable one
    "migrated",  # a group left in order
    "standby_ready",  # a standby is warm
    "repaired",  # a node is a spare again
    "waiting",  # there are too few nodes to train
    "resumed",  # there are enough again, or a pause has ended
]


class FleetEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a simulated run."""

    ts_ns: int
    kind: Kind
    node: str = ""
    group: str = ""
    detail: str = ""
    hit: Hit | None = None


class Member(NamedTuple):
    """One worker of a job or standby group, with its current state.

    ``incarnation`` starts at 1 and grows when the worker restarts, on its node or another.
    """

    worker: str
    group: str
    rank: int
    node: str
    rack: str
    state: MemberState
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one run.

    ``buckets`` are GPU-nanoseconds; they add up to ``wall_ns * gpus`` exactly. ``gpus`` are all
    that are paid for, ``job_gpus`` those of the job as planned, ``surplus`` the useful
    GPU-nanoseconds of GPUs beyond them. ``avoided`` hits only hit nodes that a migration had left.
    ``saves`` are durable checkpoints. Training is continuous in ``restart`` mode, where
    ``steps_committed`` is its equivalent. ``events`` is the number of processed ones.
    """

    buckets: dict[Bucket, int]
    wall_ns: int
    gpus: int
    job_gpus: int
    surplus: int
    failures: int
    avoided: int
    saves: int
    proactive_saves: int
    migrations: int
    steps_committed: int
    events: int

    @property
    def goodput(self) -> float:
        """Useful share of all paid GPU time."""
        return self.buckets["useful"] / (self.wall_ns * self.gpus)

    @property
    def goodput_as_planned(self) -> float:
        """The same, if groups beyond the plan count nothing."""
        return (self.buckets["useful"] - self.surplus) / (self.wall_ns * self.gpus)

    @property
    def ettr(self) -> float:
        """Effective training time ratio: useful share of the planned GPUs' time."""
        return (self.buckets["useful"] - self.surplus) / (self.wall_ns * self.job_gpus)

    @property
    def wall_s(self) -> float:
        """Length of the run, seconds."""
        return self.wall_ns / SECOND_NS
