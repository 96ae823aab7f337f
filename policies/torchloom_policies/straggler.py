"""Move a replica group whose worker holds all others up."""

from collections.abc import Iterable
from typing import Annotated

import msgspec
import numpy as np

from torchloom_core.plugin import (
    FleetView,
    Migrate,
    Need,
    Positive,
    Proposal,
    Registry,
    Share,
    grow,
    hookimpl,
)


class StragglerPolicy:
    """Propose a migration once a worker is slow for ``patience`` samples in a row.

    Ranks that wait for each other all report the same step time: where that is so, let
    ``metric`` name the time a worker computes for itself. In a run whose steps are as slow as
    its slowest worker, (slow - median) / slow of every GPU's time is waiting; that share over
    ``payback_s`` is the gain. A worker that stays slow is proposed again after another
    ``patience`` samples.
    """

    name = "straggler"

    class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        """Options of ``[policies.straggler]``.

        Attributes
        ----------
        metric : str
            Time of one step, seconds.
        ratio : float
            Slow means more than this many times the median of the training workers.
        patience : int
            Slow samples in a row, at most one a tick, before anything is proposed.
        payback_s : float
            How long the worker would go on being slow if left alone, seconds.
        confidence : float
            Probability that another node would not be slow, 0 to 1.
        min_workers : int
            Training workers with a fresh sample below which there is no median to speak of.
        """

        metric: str = "step_time_s"
        ratio: Annotated[float, msgspec.Meta(gt=1, le=1e6)] = 1.5
        patience: Annotated[int, msgspec.Meta(ge=1)] = 5
        payback_s: Positive = 600.0
        confidence: Share = 0.8
        min_workers: Annotated[int, msgspec.Meta(ge=2)] = 3

    def __init__(self, options: Options) -> None:
        self._options = options
        self._streak = np.zeros(0, dtype=np.int64)
        self.needs = (Need(options.metric),)

    def on_tick(self, view: FleetView) -> Iterable[Proposal]:
        """Count slow samples per worker; propose at the ``patience``-th."""
        options = self._options
        training = view.is_in("training")
        latest_s = view.latest(options.metric)
        usable = training & np.isfinite(latest_s) & (latest_s > 0)
        step_time_s = np.where(usable, latest_s, np.nan)
        arrived = ~np.isnan(view.window(options.metric, view.tick_s)[:, -1])
        streak = np.where(training, grow(self._streak, len(view)), 0)
        if np.count_nonzero(usable) < options.min_workers:
            self._streak = np.zeros_like(streak)
            return
        median_s = float(np.nanmedian(step_time_s))
        slow = step_time_s > options.ratio * median_s
        self._streak = np.where(arrived, np.where(slow, streak + 1, 0), streak)
        ripe = np.flatnonzero(self._streak >= options.patience)
        self._streak[ripe] = 0
        gpus = view.costs.gpus_per_worker * np.count_nonzero(training)
        slowest: dict[str, int] = {}
        for row in ripe[np.argsort(-step_time_s[ripe], kind="stable")]:
            slowest.setdefault(view.group[row], int(row))
        for group, row in slowest.items():
            waiting = 1.0 - median_s / step_time_s[row]
            yield Proposal(
                action=Migrate(group=group),
                reason=(
                    f"{view.workers[row]} on {view.node[row] or 'an unknown node'} takes "
                    f"{step_time_s[row]:.3g} s a step for {options.patience} samples, the median "
                    f"is {median_s:.3g} s: {waiting:.0%} of {gpus:g} GPUs' time is waiting"
                ),
                gain_gpu_s=float(waiting * gpus * options.payback_s),
                cost_gpu_s=float(view.costs.migrate_s * gpus),
                confidence=options.confidence,
            )


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the policy."""
    registry.policy(StragglerPolicy)
