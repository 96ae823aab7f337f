"""Suspend a role while one of higher priority uses its nodes."""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
import numpy as np

from torchloom_core.plugin import (
    FleetView,
    NotNegative,
    Positive,
    Proposal,
    Registry,
    ResumeRun,
    SuspendRun,
    hookimpl,
)

_PRESENT = ("joining", "training", "paused")
_AGAIN_NS = 10_000_000_000


class NodeLeasesPolicy:
    """Propose that a role gives way to workers of a higher priority, and comes back after them.

    A worker claims its node by being there. A role is suspended as soon as a worker of a higher
    priority is on one of its nodes, and resumed once none has been there for ``free_s``. What
    somebody else has suspended is left alone.

    A GPU-second of a role is worth its priority. So the gain of a suspension is ``horizon_s`` of
    the workers that come, times the ratio of the priorities, and it costs ``horizon_s`` of those
    that wait, both on the nodes that they share.
    """

    name = "node_leases"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.node_leases]``."""

        priority: Annotated[dict[str, Positive], msgspec.Meta(min_length=2)]
        """The priority of each role that takes part, as ``{ trainer = 10, batch = 1 }``."""
        depth: Literal["frozen", "parked", "stored"] = "frozen"
        """How deep a role is suspended."""
        free_s: NotNegative = 10.0
        """How long the nodes have to be free before the role is resumed, seconds."""
        horizon_s: Positive = 600.0
        """How long the nodes are expected to be in use, seconds."""
        silent_s: Positive = 60.0
        """A worker that has sent nothing for longer claims nothing, seconds."""

    needs = ()

    def __init__(self, options: Options) -> None:
        self._options = options
        self._next_ns: dict[str, int] = {}
        self._used_ns: dict[str, int] = {}
        self.status = ""

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Look at the nodes of each role, that of the lowest priority first."""
        priority = self._options.priority
        self.status = ", ".join(f"{role} waits" for role in view.suspended if role in priority)
        for role in sorted(priority, key=lambda one: (priority[one], one)):
            claiming, own = self._on_nodes(view, role)
            if claiming:
                self._used_ns[role] = view.now_ns
            if view.now_ns < self._next_ns.get(role, 0):
                continue
            proposal = None
            if role in view.suspended:
                proposal = self._resume(view, role, own)
            elif claiming and own and all(view.state[row] == "training" for row in own):
                proposal = self._suspend(view, role, claiming, own)
            if proposal is not None:
                self._next_ns[role] = view.now_ns + _AGAIN_NS
                yield proposal

    def _on_nodes(self, view: FleetView, role: str) -> tuple[list[int], list[int]]:
        """Return the rows of a higher priority on the role's nodes, and the role's own present."""
        priority = self._options.priority
        present = np.flatnonzero(view.is_in(*_PRESENT)).tolist()
        nodes = {node for node, of in zip(view.node, view.role, strict=True) if of == role}
        claiming = [
            row
            for row in present
            if view.node[row] in nodes
            and view.heartbeat_age_s[row] <= self._options.silent_s
            and view.role[row] not in view.suspended
            and priority.get(view.role[row], 0.0) > priority[role]
        ]
        return claiming, [row for row in present if view.role[row] == role]

    def _suspend(self, view: FleetView, role: str, claiming: list[int], own: list[int]) -> Proposal:
        options, gpus = self._options, view.costs.gpus_per_worker
        shared = {view.node[row] for row in claiming}
        waiting = sum(view.node[row] in shared for row in own)
        worth = sum(options.priority[view.role[row]] for row in claiming) / options.priority[role]
        names = ", ".join(sorted({view.role[row] for row in claiming}))
        nodes = ", ".join(sorted(shared)[:3])
        return Proposal(
            action=SuspendRun(depth=options.depth, role=role),
            reason=f"role {names} has priority on {nodes}",
            gain_gpu_s=worth * gpus * options.horizon_s,
            cost_gpu_s=waiting * gpus * options.horizon_s,
        )

    def _resume(self, view: FleetView, role: str, own: list[int]) -> Proposal | None:
        options = self._options
        free_s = (view.now_ns - self._used_ns.setdefault(role, view.now_ns)) / 1e9
        if view.suspended[role] != self.name or free_s < options.free_s:
            return None
        return Proposal(
            action=ResumeRun(role=role),
            reason=f"no role of a higher priority is on its nodes for {free_s:.0f} s",
            gain_gpu_s=max(len(own), 1) * view.costs.gpus_per_worker * options.horizon_s,
        )


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(NodeLeasesPolicy)
