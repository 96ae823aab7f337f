"""Let every healthy stand-by group train, but for those that are kept warm."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    SECOND_NS,
    AdmitGroup,
    FleetView,
    NotNegative,
    PolicyNeed,
    Positive,
    Proposal,
    Registry,
    Share,
    hookimpl,
)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class MembershipPolicy:
    """Admit the stand-by groups beyond ``keep_warm`` whose nodes are above suspicion.

    For runs in which the other groups go on when one fails. There a group that trains is as good
    a stand-by as one that waits: when another dies, the run shrinks by that one at once and by
    itself, and nothing is proposed for it. What waits is of use only to a policy that migrates,
    which needs a stand-by that is warm.

    Every group does the work that it always does, so each one more makes the global batch larger,
    and each one less makes it smaller. What that is worth, and whether the learning rate should
    follow, is the model's matter; a proposal says by how much the batch grows, and ``max_groups``
    is where it ends.

    An admission gains the group's GPUs for as long as it is expected to train, ``horizon_s``. It
    costs all others the time of a join, which is at most that of a migration, ``costs.migrate_s``:
    a join and a leave.
    """

    name = "membership"
    needs: tuple[PolicyNeed, ...] = ()

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.membership]``.

        Attributes
        ----------
        keep_warm : int
            Stand-by groups that are left waiting, for policies that migrate.
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
        self._asked_ns: dict[str, int] = {}

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Propose every stand-by group that is neither kept warm nor under suspicion."""
        options = self._options
        workers = int(np.count_nonzero(view.is_in("training")))
        if not workers:
            return
        standbys = _standbys(view)
        self._asked_ns = {g: ns for g, ns in self._asked_ns.items() if g in standbys}
        fit = [group for group, rows in standbys.items() if not self._is_suspicious(view, rows)]
        present = {view.group[row] for row in np.flatnonzero(view.is_in(*_PRESENT)).tolist()}
        groups, most = len(present), options.max_groups or len(view)
        for group in fit[: max(0, len(fit) - options.keep_warm)][: max(0, most - groups)]:
            groups += 1
            asked_ns = self._asked_ns.get(group)
            if asked_ns is not None and view.now_ns - asked_ns < options.again_s * SECOND_NS:
                continue
            self._asked_ns[group] = view.now_ns
            gpus = view.costs.gpus_per_worker * len(standbys[group])
            yield Proposal(
                action=AdmitGroup(group=group),
                reason=(
                    f"{gpus:g} GPUs stand by, and nothing speaks against their nodes; the global "
                    f"batch grows from that of {groups - 1} groups to that of {groups}"
                ),
                gain_gpu_s=gpus * options.horizon_s,
                cost_gpu_s=view.costs.migrate_s * view.costs.gpus_per_worker * workers,
                confidence=options.confidence,
            )

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
