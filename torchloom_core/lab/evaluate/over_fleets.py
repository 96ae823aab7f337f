"""Results over several traces: each trace is one fleet, and all have equal weight."""

import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from torchloom_core.lab.evaluate.forecasts.scores import Pool
from torchloom_core.lab.evaluate.results import (
    ArmSummary,
    FleetArm,
    FleetGoodput,
    FleetScore,
    OverFleets,
    PooledScore,
    Simulation,
    TraceResults,
)
from torchloom_core.lab.learning.forecast_score import ForecastScore, Interval

MIN_FLEETS = 3
"""Minimum for an interval over fleets: two figures do not show their spread."""

_HIGH = 0.975


def mean_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the mean of one figure per fleet, with a 95 % interval (Student's t over fleets).

    ``figures`` are those of the traces that have it, out of ``traces``. Their spread includes the
    uncertainty within each trace. The interval assumes figures that are about normally distributed,
    which few traces cannot show.
    """
    from scipy.special import stdtrit

    count = len(figures)
    of = f"{count} traces" if count == traces else f"{count} of {traces} traces"
    value = float(np.mean(figures)) if count else 0.0
    if count < MIN_FLEETS:
        return Interval(value=value, method=f"none: need {MIN_FLEETS} traces, was {of}")
    error = float(np.std(figures, ddof=1)) / math.sqrt(count)
    half = float(stdtrit(count - 1, _HIGH)) * error
    return Interval(
        value=value,
        low=value - half,
        high=value + half,
        method=f"Student's t over {of}, equally weighted",
    )


def share_over_fleets(figures: Sequence[float], traces: int, most: float = 1.0) -> Interval:
    """Return the same for figures from 0 to ``most``, without an interval if all are equal."""
    of = mean_over_fleets(figures, traces)
    if of.low is None or of.high is None:
        return of
    if min(figures) == max(figures):
        return Interval(
            value=of.value, method="none: need figures that differ, was one value in all"
        )
    return replace(of, low=max(0.0, of.low), high=min(most, of.high))


def difference_over_fleets(figures: Sequence[float], traces: int) -> Interval:
    """Return the same for differences, with the number of traces ahead and behind."""
    return replace(
        mean_over_fleets(figures, traces),
        ahead=sum(figure > 0 for figure in figures),
        behind=sum(figure < 0 for figure in figures),
    )


def over_fleets(found: Sequence[TraceResults], pool: Pool) -> OverFleets:
    """Return the results over all traces; ``pool`` has the scored samples."""
    simulations = [one.simulation for one in found if one.simulation is not None]
    return OverFleets(
        traces=len(found),
        forecasts=scores_over_fleets([one.forecasts for one in found], pool),
        goodput=goodput_over_fleets(simulations) if simulations else msgspec.UNSET,
    )


def scores_over_fleets(
    traces: Sequence[Iterable[ForecastScore]], pool: Pool
) -> tuple[FleetScore, ...]:
    """Return the score over fleets of each predictor; each trace has the same ones, in order."""
    return tuple(_score(scores, pool) for scores in zip(*traces, strict=True))


def _score(scores: Sequence[ForecastScore], pool: Pool) -> FleetScore:
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
        false_alarms_per_node_day=share_over_fleets(
            [one.false_alarms_per_node_day.value for one in scores], count, math.inf
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


def goodput_over_fleets(simulations: Sequence[Simulation]) -> FleetGoodput:
    """Return the results over fleets of the arms that were played on all traces.

    Per trace, an arm's value is its mean over seeds, and gains are paired by seed.
    """
    played = [{arm.name: arm for arm in simulation.arms} for simulation in simulations]
    names = [name for name in played[0] if all(name in arms for arms in played)]
    each = {name: [arms[name] for arms in played] for name in names}
    reference = _reference(each, [str(one.job.get("recovery")) for one in simulations])
    return FleetGoodput(
        reference=reference,
        arms=tuple(_arm(each[name], each[reference]) for name in names),
    )


def _reference(each: dict[str, list[ArmSummary]], recovery: list[str]) -> str:
    """Return the best baseline over fleets that needs no forecast and recovers as the jobs do."""
    eligible = [
        name
        for name, arms in each.items()
        if arms[0].kind == "baseline"
        and not arms[0].needs_forecast
        and all(arm.as_planned is msgspec.UNSET for arm in arms)
        and all(arm.recovery in (None, way) for arm, way in zip(arms, recovery, strict=True))
    ]
    return max(eligible, key=lambda name: sum(arm.goodput.value for arm in each[name]))


def _arm(arms: Sequence[ArmSummary], reference: Sequence[ArmSummary]) -> FleetArm:
    first, count = arms[0], len(arms)
    over = [arm.goodput.value - its.goodput.value for arm, its in zip(arms, reference, strict=True)]
    without = [arm.versus_without.value for arm in arms if arm.versus_without is not None]
    return FleetArm(
        name=first.name,
        kind=first.kind,
        goodput=share_over_fleets([arm.goodput.value for arm in arms], count),
        over_reference=tuple(over),
        versus_reference=None if arms == reference else difference_over_fleets(over, count),
        versus_without=None if len(without) < count else difference_over_fleets(without, count),
    )
