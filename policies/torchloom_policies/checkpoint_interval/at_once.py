"""A checkpoint at once, before a failure that is forecast."""

from collections.abc import Iterator, Sequence

import numpy as np

from torchloom_core.plugin import (
    ActedOn,
    FleetView,
    Outlook,
    Proposal,
    SaveCheckpoint,
    unsaved_work_s,
)
from torchloom_policies.checkpoint_interval.tiers import Tier


class SaveAtOnce:
    """Proposes a save if the expected loss by a forecast failure exceeds its cost.

    The failure is that of one worker, which loses the work since the last save in the least
    durable tier. A forecast leads to one save per horizon, unless its odds have doubled.
    """

    def __init__(self, predictor: str) -> None:
        self._outlook = Outlook(predictor)
        self._saved = ActedOn()

    def proposals(
        self, tiers: Sequence[Tier], save_s: float, training: list[int], view: FleetView
    ) -> Iterator[Proposal]:
        """Yield the proposal, if it pays; ``save_s`` is what a save costs the run now."""
        costs = view.costs
        unsaved_s = tiers[0].unsaved_s(view) if tiers else unsaved_work_s(view)
        if unsaved_s is None:
            unsaved_s = costs.unsaved_s
        interval_s = max(tiers[0].values) if tiers else 2.0 * costs.unsaved_s
        p = self._outlook.probability(view)
        until_next_s, rest_s = interval_s - unsaved_s, self._outlook.rest_s
        share = until_next_s / rest_s if 0 < until_next_s < rest_s else 1.0
        fresh = [
            row
            for row in training
            if p[row] > 0 and self._saved.is_news(view.workers[row], float(p[row]), view.now_ns)
        ]
        with np.errstate(divide="ignore"):
            any_fails = float(-np.expm1(share * np.log1p(-p[fresh]).sum()))
        if any_fails * unsaved_s <= save_s:
            return
        for row in fresh:
            self._saved.add(view.workers[row], float(p[row]), view.now_ns, rest_s)
        worst = max(fresh, key=lambda row: float(p[row]))
        run_gpus = costs.gpus_per_worker * len(training)
        why = self._outlook.why(view, worst)
        yield Proposal(
            action=SaveCheckpoint(),
            reason=(
                f"the run fails before its next checkpoint with probability {any_fails:.2f}, most "
                f"likely {view.workers[worst]} on {view.node[worst] or 'an unknown node'}"
                f"{f' ({why})' if why else ''}: {unsaved_s:.0f} s of work would be lost, a save "
                f"takes {save_s:g} s"
            ),
            gain_gpu_s=unsaved_s * run_gpus,
            cost_gpu_s=save_s * run_gpus,
            confidence=any_fails,
            cause=(self._outlook.id,),
        )
