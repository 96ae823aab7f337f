"""What the fleet model is given: the job, its nodes, the faults that will hit them."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Literal

import msgspec

from torchloom_core.trace.bundle.schema import Follows

Bucket = Literal[
    "useful", "checkpoint", "lost", "restart", "detect", "migrate", "waiting", "spare", "repair"
]
"""Where a GPU's second goes. ``spare``: standbys and cold spares; ``repair``: a node that is
repaired or inspected; ``waiting``: a job, or a group of it, that has too few nodes to go on."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One kind of checkpoint: what it costs, how often, and what a restart from it costs.

    ``interval_s`` is the work between two, the time to save not counted; inf: never.
    """

    save_s: float
    restart_s: float
    interval_s: float


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """The training job, and what everything costs it. Seconds; see ``[evaluate]``, ``[costs]``.

    Attributes
    ----------
    durable : Tier
        Checkpoints that survive anything.
    local : Tier, optional
        Faster ones that survive a fault of the job, not the loss of a node.
    proactive_save_s : float
        What a durable checkpoint on demand costs.
    migrate_s : float
        How long the whole run pauses when a standby takes a group's place.
    min_groups : int
        In ``per_step`` mode: the run waits while fewer than so many groups are there.
    join_stall_s, leave_stall_s, kill_stall_s : float
        In ``per_step`` mode: how long those that go on stand still for a group that joins them,
        one that leaves in order, and one that dies, beside the step which that spoils.
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

    @property
    def nodes(self) -> int:
        """Nodes that are paid for: those of the job, the standbys and the spares."""
        return (self.groups + self.standbys) * self.nodes_per_group + self.spares


class Hit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One failure as the model has it, from an event of the trace or a seeded process.

    Attributes
    ----------
    nodes : tuple of str
        Nodes that are lost; empty for a fault of the job itself.
    follows : Follows
        ``component`` and ``fabric`` hit the job only if it sits on one of ``nodes``; ``job``
        hits it wherever it is, and no node is lost. ``unknown`` was decided by the caller.
    repair_ns : int
        How long the nodes are away.
    seen_on : tuple of str
        Where a fault of the job was recorded: it is this job's only if it began on one of them.
        Empty: it is this job's in any case.
    """

    id: str
    ts_ns: int
    nodes: tuple[str, ...]
    follows: Follows
    repair_ns: int
    seen_on: tuple[str, ...] = ()

    def strikes(self, nodes: Set[str]) -> bool:
        """Tell whether it strikes a job that began on ``nodes`` and still sits there."""
        places = self.nodes or self.seen_on
        return not places or not nodes.isdisjoint(places)
