"""What the fleet model tells its caller: who is there, what happened, what it all came to."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from torchloom_core.clock import SECOND_NS
from torchloom_core.simulate.scenario import Bucket, Hit

MemberState = Literal["training", "joining", "paused", "standby", "left", "gone"]
"""``joining``: it comes back, and does no work yet; ``left``: it went in order; ``gone``: its
process died."""

Kind = Literal[
    "fault",
    "hit_missed",
    "worker_lost",
    "down",
    "restarted",
    "saved",
    "committed",
    "migrated",
    "standby_ready",
    "repaired",
    "waiting",
    "resumed",
]
"""What can happen.

``fault``: a hit touched a node of the allocation, or the job; ``hit_missed``: its node had been
migrated away from in time; ``worker_lost``: a process died, ``detail`` names the worker; ``down``:
the run, or a group of it, stopped; ``restarted``: it works again; ``saved``: a local checkpoint is
there; ``committed``: a durable one; ``migrated``: a group left in order; ``standby_ready``: a
standby is warm; ``repaired``: a node is a spare again; ``waiting``: there are too few nodes to go
on; ``resumed``: there are enough again, or a pause has ended.
"""


class FleetEvent(msgspec.Struct, frozen=True, gc=False):
    """One thing that happened, as it happened."""

    ts_ns: int
    kind: Kind
    node: str = ""
    group: str = ""
    detail: str = ""
    hit: Hit | None = None


class Member(NamedTuple):
    """One worker of a job or standby group, and how it is now.

    ``incarnation`` counts from 1 and grows when the worker starts anew, on its node or another.
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
    """What one run came to.

    Attributes
    ----------
    buckets : dict of Bucket to int
        GPU-nanoseconds; they add up to ``wall_ns * gpus`` exactly.
    gpus, job_gpus : int
        All that are paid for, and those of the job as planned, without standbys and spares.
    surplus : int
        Useful GPU-nanoseconds of GPUs beyond ``job_gpus``, where standbys were admitted.
    failures : int
        Hits that cost the run something.
    avoided : int
        Hits that would have been failures, had their nodes not been migrated away from.
    useless_migrations : int
        Migrations whose nodes came back from inspection with nothing having struck them.
    saves, proactive_saves : int
        Durable checkpoints, and those of them that were asked for.
    steps_tried, steps_committed : int
        Steps that were worked on to the end, and those that were kept. In ``restart`` mode work
        is continuous and these are whole steps' worth of it.
    first_commit_ns : int, optional
        When work was kept for the first time: a durable checkpoint, or a step in ``per_step``.
    events : int
        What the model processed, hits included.
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
    useless_migrations: int
    steps_tried: int
    steps_committed: int
    first_commit_ns: int | None
    events: int

    @property
    def goodput(self) -> float:
        """Useful share of the time of all GPUs that are paid for."""
        return self.buckets["useful"] / (self.wall_ns * self.gpus)

    @property
    def goodput_as_planned(self) -> float:
        """The same, if nothing is gained by a larger batch than the planned groups make."""
        return (self.buckets["useful"] - self.surplus) / (self.wall_ns * self.gpus)

    @property
    def ettr(self) -> float:
        """Effective training time ratio: useful share of the time of as many GPUs as planned."""
        return (self.buckets["useful"] - self.surplus) / (self.wall_ns * self.job_gpus)

    @property
    def wall_s(self) -> float:
        """Length of the run, seconds."""
        return self.wall_ns / SECOND_NS
