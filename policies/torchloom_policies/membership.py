"""Let every healthy standby group train, but for those that are kept warm."""

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
    """Admit the standby groups beyond ``keep_warm`` whose nodes are above suspicion.

    For runs in which the other groups go on when one fails. There a group that trains is as good
    a standby as one that waits: when another dies, the run shrinks by that one at once and by
    itself, and nothing is proposed for it. What waits is of use only to a policy that migrates,
    which needs a standby that is warm.

    Every group does the work that it always does, so each one more makes the global batch larger,
    and each one less makes it smaller. What that is worth, and whether the learning rate should
    follow, is the model's matter; a proposal says by how much the batch grows, and ``max_groups``
    is where it ends.

    An admission gains the group's GPUs for as long as it is expected to train, ``horizon_s``. It
    costs all others the time of a join, which is at most that of a migration, ``costs.migrate_s``:
    a join and a leave; and what its state takes of the network while they train
    (:class:`~torchloom_core.plugin.Traffic`).

    While that takes more than at the median of the run's last hour, the group waits for a quieter
    network, as one rents skis that one may have to buy: until the GPU-seconds that its own GPUs
    have lost by waiting are as many as the transfer would cost more now than usually. Where that
    stays as it is, both together are at most twice what it would have cost to go at once. What was
    lost by waiting is not in the price, for it is lost either way; the reason tells of it.
    """

    name = "membership"
    needs: tuple[PolicyNeed, ...] = TRAFFIC_NEEDS

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.membership]``.

        Attributes
        ----------
        keep_warm : int
            Standby groups that are left waiting, for policies that migrate.
        max_groups : int
            Admit nobody to a run of so many groups, which bounds the global batch; 0: no bound.
        quiet_s : float
            A node is under suspicion for so long after a fault, seconds.
        horizon_s : float
            How long an admitted group is expected to train, seconds.
        confidence : float
            Probability that it does, 0 to 1.
        again_s : float
            A group that still stands by is proposed again after this time, seconds.
        """

        keep_warm: _Count = 0
        max_groups: _Count = 0
        quiet_s: NotNegative = 600.0
        horizon_s: Positive = 86_400.0
        confidence: Share = 0.9
        again_s: Positive = 600.0

    def __init__(self, options: Options) -> None:
        self._options = options
        self._traffic = Traffic()
        self._asked_ns: dict[str, int] = {}
        self._waiting_since_ns: dict[str, int] = {}

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose every standby group that is neither kept warm, nor suspicious, nor waits."""
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
            self._asked_ns[group] = view.now_ns
            state_bytes = self._traffic.state_bytes
            waited = f"; waited {waited_s:.0f} s for a quieter one, {waited_s * gpus:.0f} GPU-s"
            yield Proposal(
                action=AdmitGroup(group=group),
                reason=(
                    f"{gpus:g} GPUs stand by, and nothing speaks against their nodes; the global "
                    f"batch grows from that of {groups} groups to that of {groups + 1}; "
                    f"{self._traffic.in_words('their state', state_bytes)}"
                    f"{waited if waited_s else ''}"
                ),
                gain_gpu_s=gpus * self._options.horizon_s,
                cost_gpu_s=view.costs.migrate_s * view.costs.gpus_per_worker * workers
                + self._traffic.transfer_gpu_s(state_bytes),
                confidence=self._options.confidence,
            )

    def _next(self, standbys: dict[str, list[int]], view: FleetView) -> Iterator[tuple[int, str]]:
        """Yield who may join now, each with the number of groups that are there before it."""
        options = self._options
        self._asked_ns = {g: ns for g, ns in self._asked_ns.items() if g in standbys}
        fit = [group for group, rows in standbys.items() if not self._is_suspicious(view, rows)]
        present = {view.group[row] for row in np.flatnonzero(view.is_in(*_PRESENT)).tolist()}
        most = max(0, (options.max_groups or len(view)) - len(present))
        for place, group in enumerate(fit[: max(0, len(fit) - options.keep_warm)][:most]):
            asked_ns = self._asked_ns.get(group)
            if asked_ns is None or view.now_ns - asked_ns >= options.again_s * SECOND_NS:
                yield len(present) + place, group

    def _waits(self, lost_gpu_s: float) -> bool:
        """Say whether to wait on for a quieter network, so much having been lost by it."""
        traffic = self._traffic
        price_gpu_s = traffic.transfer_gpu_s(traffic.state_bytes)
        return price_gpu_s - traffic.usual_gpu_s(traffic.state_bytes) > lost_gpu_s

    def _is_suspicious(self, view: FleetView, rows: list[int]) -> bool:
        """Say whether a node of these rows is cordoned, or had a fault of late."""
        since_ns = view.now_ns - self._options.quiet_s * SECOND_NS
        places = {view.node[row] for row in rows} | {view.workers[row] for row in rows}
        return not view.cordoned.isdisjoint(places) or any(
            view.faults_of[place][-1].ts_ns > since_ns for place in places & view.faults_of.keys()
        )


_PRESENT = ("training", "paused", "joining")
"""States of workers whose group is of the run, or about to be."""


def _standbys(view: FleetView) -> dict[str, list[int]]:
    """Return the rows of the groups of which all workers stand by."""
    rows_of: dict[str, list[int]] = {}
    for row, group in enumerate(view.group):
        rows_of.setdefault(group, []).append(row)
    waits = view.is_in("standby")
    return {group: rows for group, rows in rows_of.items() if waits[rows].all()}


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(MembershipPolicy)
