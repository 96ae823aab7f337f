"""Hold the arms against each other: seed by seed, with intervals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from torchloom_core.evaluate.goodput.arms import Arm
from torchloom_core.evaluate.goodput.episode import rng
from torchloom_core.evaluate.results import ArmSummary, AsPlanned, RunResult
from torchloom_core.evaluate.verdict_counts import mean_verdicts
from torchloom_core.learning.forecast_score import Interval
from torchloom_core.plugin.arrays import Floats

RESAMPLES = 10_000
MIN_SEEDS = 6
"""With fewer, differences that share a sign by chance would look certain."""
_LEVELS = (2.5, 97.5)

Runs = Mapping[str, Sequence[RunResult]]
"""Arm to its runs, in the order of the seeds, which is the same for all."""


def interval(values: Iterable[float]) -> Interval:
    """Return the mean over seeds with a percentile bootstrap of 95 %; few seeds have none.

    The resamples are the same for every quantity of a study with as many seeds.
    """
    sample: Floats = np.fromiter(values, np.float64)
    count, mean = len(sample), float(sample.mean())
    if count < MIN_SEEDS:
        return Interval(value=mean, method=f"none: need {MIN_SEEDS} seeds, was {count}")
    drawn = rng(count, "bootstrap").integers(0, count, (RESAMPLES, count))
    low, high = np.percentile(sample[drawn].mean(axis=1), _LEVELS)
    return Interval(
        value=mean,
        low=float(low),
        high=float(high),
        method=f"bootstrap of {count} seeds, {RESAMPLES} resamples",
    )


def gain(runs: Sequence[RunResult], reference: Sequence[RunResult]) -> Interval:
    """Return the paired difference in goodput: same seeds, same faults."""
    pairs = zip(runs, reference, strict=True)
    differences = [ours.goodput - its.goodput for ours, its in pairs]
    ahead = sum(difference > 0 for difference in differences)
    behind = sum(difference < 0 for difference in differences)
    return replace(interval(differences), ahead=ahead, behind=behind)


def reference_of(arms: Iterable[Arm], runs: Runs, recovery: str) -> str:
    """Return the best baseline that needs no forecast, by mean goodput.

    It recovers as the job of the study does: no policy changes that, so what it can gain is
    asked within one way to recover. An arm with the other one stands beside it, and so does one
    whose run grows: its batch is another.
    """
    honest = [
        arm.name
        for arm in arms
        if arm.kind == "baseline"
        and not arm.needs_forecast
        and not arm.grows
        and arm.recovery in (None, recovery)
    ]
    return max(honest, key=lambda name: mean_goodput(runs[name]))


def mean_goodput(runs: Sequence[RunResult]) -> float:
    """Return the mean over seeds."""
    return sum(run.goodput for run in runs) / len(runs)


def as_planned(run: RunResult) -> RunResult:
    """Return the run with the goodput that it has if more groups than planned are worth nothing."""
    return run if run.as_planned is msgspec.UNSET else replace(run, goodput=run.as_planned)


def summarize(
    arms: Iterable[Arm], runs: Runs, *, reference: str, oracle: str, without: Runs
) -> tuple[ArmSummary, ...]:
    """Return what became of every arm, against the reference and on the way to the oracle.

    Parameters
    ----------
    without : Runs
        By the name of an arm with policies, the same job without them.
    """
    return tuple(_summary(arm, runs, reference, oracle, without.get(arm.name)) for arm in arms)


def _summary(
    arm: Arm, runs: Runs, reference: str, oracle: str, without: Sequence[RunResult] | None
) -> ArmSummary:
    own = runs[arm.name]
    decisions = sum(run.decisions for run in own)
    return ArmSummary(
        name=arm.name,
        kind=arm.kind,
        what=arm.what,
        needs_forecast=arm.needs_forecast,
        recovery=arm.recovery,
        goodput=interval(run.goodput for run in own),
        ettr=interval(run.ettr for run in own),
        versus_reference=None if arm.name == reference else gain(own, runs[reference]),
        versus_without=None if without is None else gain(own, without),
        as_planned=_as_planned(own, runs[reference]) if arm.grows else msgspec.UNSET,
        to_oracle=_way(own, runs, reference, oracle) if _seeks_oracle(arm) else None,
        buckets=_shares(own),
        failures=_mean(run.failures for run in own),
        migrations=_mean(run.migrations for run in own),
        moves=_mean(run.moves for run in own),
        right_moves=_mean(run.right_moves for run in own),
        decisions=decisions / len(own),
        operations=mean_verdicts([run.operations for run in own]),
        invalid_share=_invalid_share(own),
        quarantined={name: why for run in own for name, why in run.quarantined.items()},
        silent=dict(sorted(Counter(name for run in own for name in run.silent).items())),
    )


def _seeks_oracle(arm: Arm) -> bool:
    """Say whether an arm is measured by who knows the future: what grows gains by other means."""
    return arm.kind == "candidate" and not arm.grows


def _as_planned(own: Sequence[RunResult], reference: Sequence[RunResult]) -> AsPlanned:
    """Return what an arm comes to if more groups than planned are worth nothing."""
    capped = [as_planned(run) for run in own]
    return AsPlanned(
        goodput=interval(run.goodput for run in capped), versus_reference=gain(capped, reference)
    )


def _way(own: Sequence[RunResult], runs: Runs, reference: str, oracle: str) -> float | None:
    """Return the share of the way from the reference to the oracle; None if there is no way."""
    if oracle not in runs:
        return None
    way = mean_goodput(runs[oracle]) - mean_goodput(runs[reference])
    return (mean_goodput(own) - mean_goodput(runs[reference])) / way if way > 0 else None


def _invalid_share(runs: Sequence[RunResult]) -> float | None:
    """Return the share of the decisions that rest on another load; None where nobody could tell."""
    told = [run for run in runs if run.invalid_decisions is not None]
    decisions = sum(run.decisions for run in told)
    return sum(run.invalid_decisions or 0 for run in told) / decisions if decisions else None


def _shares(runs: Sequence[RunResult]) -> dict[str, float]:
    return {
        bucket: _mean(run.buckets[bucket] / (run.wall_s * run.gpus) for run in runs)
        for bucket in runs[0].buckets
    }


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(np.fromiter(values, np.float64)))
