"""Combine the scores of the same predictors on several traces: pooled, and as means."""

from collections.abc import Iterable, Sequence

import numpy as np

from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.evaluate.fleet_means import (
    difference_over_fleets,
    rate_over_fleets,
    share_over_fleets,
)
from torchloom_core.lab.evaluate.fleet_results import FleetScore, PooledScore
from torchloom_core.lab.evaluate.forecasts.alarms import Bools, Judged
from torchloom_core.lab.evaluate.forecasts.intervals import average_precision
from torchloom_core.lab.evaluate.forecasts.scores import samples_of
from torchloom_core.lab.learning.forecast_score import ForecastScore


class Pool:
    """The scored samples of each predictor, of all traces so far."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[Floats, Bools]]] = {}

    def add(self, predictor: str, judged: Judged) -> None:
        """Add a predictor's forecasts and outcomes on one trace."""
        self._samples.setdefault(predictor, []).append(samples_of(judged))

    def auprc(self, predictor: str) -> float:
        """Return the AUPRC of all its samples together, 0 without a positive one."""
        score, positive = zip(*self._samples[predictor], strict=True)
        return average_precision(np.concatenate(score), np.concatenate(positive)).value


def scores_over_fleets(
    traces: Sequence[Iterable[ForecastScore]], pool: Pool
) -> tuple[FleetScore, ...]:
    """Return the score of each predictor over fleets.

    Each trace has the same predictors in the same order; ``pool`` has their samples.
    """
    return tuple(_over_fleets(scores, pool) for scores in zip(*traces, strict=True))


def _over_fleets(scores: Sequence[ForecastScore], pool: Pool) -> FleetScore:
    count = len(scores)
    ranked = [one for one in scores if one.positives]
    rivals = dict.fromkeys(name for one in ranked for name in one.versus)
    return FleetScore(
        predictor=scores[0].predictor,
        prevalence=float(np.mean([one.prevalence for one in ranked])) if ranked else 0.0,
        auprc=share_over_fleets([one.auprc.value for one in ranked], count),
        precision=share_over_fleets(
            [one.precision.value for one in scores if _found(one) + _false(one)], count
        ),
        recall=share_over_fleets([one.recall.value for one in scores if one.incidents], count),
        false_alarms_per_node_day=rate_over_fleets(
            [one.false_alarms_per_node_day.value for one in scores], count
        ),
        versus={
            name: difference_over_fleets(
                [one.versus[name].value for one in ranked if name in one.versus], count
            )
            for name in rivals
        },
        pooled=_pooled(scores, pool.auprc(scores[0].predictor)),
    )


def _pooled(scores: Sequence[ForecastScore], auprc: float) -> PooledScore:
    found, false = sum(map(_found, scores)), sum(map(_false, scores))
    incidents = sum(one.incidents for one in scores)
    days = sum(one.component_days for one in scores)
    return PooledScore(
        samples=sum(one.samples for one in scores),
        positives=sum(one.positives for one in scores),
        incidents=incidents,
        auprc=auprc,
        precision=found / (found + false) if found + false else None,
        recall=found / incidents if incidents else None,
        false_alarms_per_node_day=false / days if days else 0.0,
    )


def _found(score: ForecastScore) -> int:
    return len(score.leads_s)


def _false(score: ForecastScore) -> int:
    return round(score.false_alarms_per_node_day.value * score.component_days)
