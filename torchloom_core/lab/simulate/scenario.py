"""Input of the fleet model: the job and the failures."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import msgspec

from torchloom_core.lab.trace.bundle.schema import Follows

Bucket = Literal[
    "useful", "checkpoint", "lost", "restart", "detect", "migrate", "waiting", "spare", "repair"
]
"""Buckets of GPU time. ``spare``: standbys and cold spares; ``repair``: nodes under repair or
inspection; ``waiting``: the job, or a group of it, has too few nodes to train."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One kind of checkpoint: its costs and its interval.

    ``interval_s`` is the training time between two, without the time to save; inf: never.
    """

    save_s: float
    restart_s: float
    interval_s: float


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The training job and its costs, in seconds; see ``[evaluate]`` and ``[costs]``.

    ``durable`` checkpoints survive anything, ``local`` ones are faster and survive a fault of the
    job, and the loss of a node only if ``local_has_copies``: of one node, as another one has a
    copy. ``migrate_s`` is the pause of the whole run when a standby replaces
    a group. In ``per_step`` mode the run waits while there are fewer than ``min_groups``, and the
    stalls are those of the other groups when a group joins, leaves in order, or dies, in addition
    to the lost step.
    """

    groups: int
    nodes_per_group: int
    gpus_per_node: int
    standbys: int
    spares: int
    recovery: Literal["restart", "per_step"]
    step_s: float
    durable: Tier
    local: Tier | None
    proactive_save_s: float
    detect_s: float
    migrate_s: float
    rejoin_s: float
    provision_s: float
    warm_up_s: float
    inspect_s: float
    min_groups: int = 1
    join_stall_s: float = 0.0
    leave_stall_s: float = 0.0
    kill_stall_s: float = 0.0
    local_has_copies: bool = False

    @property
    def nodes(self) -> int:
        """All paid nodes: those of the job, the standbys and the spares."""
        return (self.groups + self.standbys) * self.nodes_per_group + self.spares


class Hit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failure, from an event of the trace or a seeded process; ``unknown`` causes are resolved.

    If it follows ``component`` or ``fabric``, it hits the job only if it runs on one of ``nodes``,
    which are away for ``repair_ns``. One that follows ``job`` hits it anywhere, and no node is
    lost; if it was ``seen_on`` some nodes, it hits this job only if the job started on one of them.
    """

    id: str
    ts_ns: int
    nodes: tuple[str, ...]
    follows: Follows
    repair_ns: int
    seen_on: tuple[str, ...] = ()

    def strikes(self, nodes: Set[str]) -> bool:
        """Return whether it hits a job that started on ``nodes`` and still runs there."""
        places = self.nodes or self.seen_on
        return not places or not nodes.isdisjoint(places)
