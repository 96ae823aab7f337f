"""Admit every healthy standby group, except those reserved as warm standbys."""

from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    SECOND_NS,
    TRAFFIC_NEEDS,
    AdmitGroup,
    FleetView,
    NotNegative,
    PolicyNeed,
    Positive,
    Proposal,
    Registry,
    Share,
    Traffic,
    hookimpl,
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class MembershipPolicy:
    """Admit the standby groups beyond ``keep_warm`` on nodes without recent faults.

    For runs in which the other groups continue when one fails. There an idle standby has no
    advantage: when a group fails, the run shrinks by that group at once, without a proposal. Only
    a policy that migrates needs a warm standby.

    Each group has a fixed batch, so every admission enlarges the global batch, and every failure
    reduces it. Whether to adapt the learning rate depends on the model; the proposal states the
    growth of the batch, and ``max_groups`` bounds it.

    The gain of an admission is the group's GPUs for ``horizon_s``. Its cost is a pause of all
    others, at most that of a migration, ``costs.migrate_s`` (a join and a leave), and the traffic
    of the state transfer (:class:`~torchloom_core.plugin.Traffic`).

    While the transfer costs more than at the median of the run's last hour, the group waits for a
    quieter network, by the ski-rental rule: until its GPUs have lost as many GPU-seconds by
    waiting as the transfer costs more than usual. The total is then at most twice the cost of an
    immediate admission. The time already lost is not part of the cost; the reason states it.
    """

    name = "membership"
    needs: tuple[PolicyNeed, ...] = TRAFFIC_NEEDS

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.membership]``."""

        keep_warm: _Count = 0
        """Standby groups left in reserve for policies that migrate."""
        max_groups: _Count = 0
        """Admit no group to a run of this many, to bound the global batch; 0: no bound."""
        quiet_s: NotNegative = 600.0
        """A node is excluded for this long after a fault, seconds."""
        horizon_s: Positive = 86_400.0
        """How long an admitted group is expected to train, seconds."""
        confidence: Share = 0.9
        """Probability that it trains that long, 0 to 1."""
        again_s: Positive = 600.0
        """A group that is still a standby is proposed again after this time, seconds."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._traffic = Traffic()
        self._proposed_ns: dict[str, int] = {}
        self._waiting_since_ns: dict[str, int] = {}

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose every standby group that is not reserved, excluded or waiting."""
        self._traffic.look(view)
        workers = int(np.count_nonzero(view.is_in("training")))
        if not workers:
            return
        standbys = _standbys(view)
        waiting_since_ns, self._waiting_since_ns = self._waiting_since_ns, {}
        for groups, group in self._next(standbys, view):
            since_ns = waiting_since_ns.get(group, view.now_ns)
            waited_s = (view.now_ns - since_ns) / SECOND_NS
            gpus = view.costs.gpus_per_worker * len(standbys[group])
            if self._waits(waited_s * gpus):
                self._waiting_since_ns[group] = since_ns
                continue
            self._proposed_ns[group] = view.now_ns
            state_bytes = self._traffic.state_bytes
            waited = f"; waited {waited_s:.0f} s for a quieter network, {waited_s * gpus:.0f} GPU-s"
            yield Proposal(
                action=AdmitGroup(group=group),
                reason=(
                    f"{gpus:g} GPUs stand by on nodes without recent faults; the global batch "
                    f"grows from that of {groups} groups to that of {groups + 1}; "
                    f"{self._traffic.in_words('their state', state_bytes)}"
                    f"{waited if waited_s else ''}"
                ),
                gain_gpu_s=gpus * self._options.horizon_s,
                cost_gpu_s=view.costs.migrate_s * view.costs.gpus_per_worker * workers
                + self._traffic.transfer_gpu_s(state_bytes),
                confidence=self._options.confidence,
            )

    def _next(self, standbys: dict[str, list[int]], view: FleetView) -> Iterator[tuple[int, str]]:
        """Yield the groups that may join now, each with the number of groups before it."""
        options = self._options
        self._proposed_ns = {g: ns for g, ns in self._proposed_ns.items() if g in standbys}
        fit = [group for group, rows in standbys.items() if not self._is_suspicious(view, rows)]
        present = {view.group[row] for row in np.flatnonzero(view.is_in(*_PRESENT)).tolist()}
        most = max(0, (options.max_groups or len(view)) - len(present))
        for place, group in enumerate(fit[: max(0, len(fit) - options.keep_warm)][:most]):
            proposed_ns = self._proposed_ns.get(group)
            if proposed_ns is None or view.now_ns - proposed_ns >= options.again_s * SECOND_NS:
                yield len(present) + place, group

    def _waits(self, lost_gpu_s: float) -> bool:
        """Return whether to keep waiting for a quieter network, after ``lost_gpu_s``."""
        traffic = self._traffic
        price_gpu_s = traffic.transfer_gpu_s(traffic.state_bytes)
        return price_gpu_s - traffic.usual_gpu_s(traffic.state_bytes) > lost_gpu_s

    def _is_suspicious(self, view: FleetView, rows: list[int]) -> bool:
        """Return whether a node of these rows is cordoned, or had a fault within ``quiet_s``."""
        since_ns = view.now_ns - self._options.quiet_s * SECOND_NS
        places = {view.node[row] for row in rows} | {view.workers[row] for row in rows}
        return not view.cordoned.isdisjoint(places) or any(
            view.faults_of[place][-1].ts_ns > since_ns for place in places & view.faults_of.keys()
        )


_PRESENT = ("training", "paused", "joining")
"""States of workers whose group belongs to the run or is about to join."""


def _standbys(view: FleetView) -> dict[str, list[int]]:
    """Return the rows of the groups whose workers all stand by."""
    rows_of: dict[str, list[int]] = {}
    for row, group in enumerate(view.group):
        rows_of.setdefault(group, []).append(row)
    waits = view.is_in("standby")
    return {group: rows for group, rows in rows_of.items() if waits[rows].all()}


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(MembershipPolicy)
