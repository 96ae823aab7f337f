"""Compare the arms, paired by seed, with intervals."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.evaluate.arm import Arm, mean_verdicts
from torchloom_core.lab.evaluate.goodput.episode import rng
from torchloom_core.lab.evaluate.results import ArmSummary, AsPlanned, RunResult
from torchloom_core.lab.learning.forecast_score import Interval

RESAMPLES = 10_000
MIN_SEEDS = 6
"""With fewer seeds, differences that share a sign by chance would look certain."""
_LEVELS = (2.5, 97.5)

Runs = Mapping[str, Sequence[RunResult]]
"""Arm to its runs, in the common order of seeds."""


def interval(values: Iterable[float]) -> Interval:
    """Return the mean over seeds with a 95 % percentile bootstrap; too few seeds have none.

    The resamples are the same for every quantity with the same number of seeds.
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


def paired(figures: Iterable[float], equal: float = 0.0) -> Interval:
    """Return the same for comparisons by seed, with the numbers of seeds ahead and behind."""
    sample = [*figures]
    return replace(
        interval(sample),
        ahead=sum(one > equal for one in sample),
        behind=sum(one < equal for one in sample),
    )


def gain(runs: Sequence[RunResult], reference: Sequence[RunResult]) -> Interval:
    """Return the paired difference in goodput: same seeds, same faults."""
    pairs = zip(runs, reference, strict=True)
    return paired(ours.goodput - its.goodput for ours, its in pairs)


def share_of_gain(own: float, most: float, reference: float) -> float | None:
    """Return the share of the largest gain over a reference; None if it is no gain."""
    return (own - reference) / (most - reference) if most > reference else None


def reference_of(arms: Iterable[Arm], runs: Runs, recovery: str) -> str:
    """Return the best baseline that needs no forecast, by mean goodput.

    It has the recovery mode of the job, which no policy can change. Arms with the other mode, and
    arms whose run grows, which changes the batch, are reported but not used as the reference.
    """
    eligible = [
        arm.name
        for arm in arms
        if arm.kind == "baseline"
        and not arm.needs_forecast
        and not arm.grows
        and arm.recovery in (None, recovery)
    ]
    return max(eligible, key=lambda name: mean_goodput(runs[name]))


def mean_goodput(runs: Sequence[RunResult]) -> float:
    """Return the mean over seeds."""
    return sum(run.goodput for run in runs) / len(runs)


def as_planned(run: RunResult) -> RunResult:
    """Return the run with goodput as planned, in which groups beyond the plan count nothing."""
    return run if run.as_planned is msgspec.UNSET else replace(run, goodput=run.as_planned)


def summarize(
    arms: Iterable[Arm], runs: Runs, *, reference: str, oracle: str, without: Runs
) -> tuple[ArmSummary, ...]:
    """Return the summary of every arm; ``without`` has its runs without its policies."""
    return tuple(_summary(arm, runs, reference, oracle, without.get(arm.name)) for arm in arms)


def _summary(
    arm: Arm, runs: Runs, reference: str, oracle: str, without: Sequence[RunResult] | None
) -> ArmSummary:
    own = runs[arm.name]
    decisions = sum(run.decisions for run in own)
    to_oracle = None
    if arm.kind == "candidate" and not arm.grows and oracle in runs:  # growth gains by other means
        to_oracle = share_of_gain(
            *(mean_goodput(runs[one]) for one in (arm.name, oracle, reference))
        )
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
        to_oracle=to_oracle,
        buckets=_shares(own),
        failures=mean(run.failures for run in own),
        migrations=mean(run.migrations for run in own),
        moves=mean(run.moves for run in own),
        right_moves=mean(run.right_moves for run in own),
        decisions=decisions / len(own),
        operations=mean_verdicts([run.operations for run in own]),
        invalid_share=_invalid_share(own),
        quarantined={name: why for run in own for name, why in run.quarantined.items()},
        silent=dict(sorted(Counter(name for run in own for name in run.silent).items())),
    )


def _as_planned(own: Sequence[RunResult], reference: Sequence[RunResult]) -> AsPlanned:
    """Return the result of an arm if groups beyond the plan count nothing."""
    capped = [as_planned(run) for run in own]
    return AsPlanned(
        goodput=interval(run.goodput for run in capped), versus_reference=gain(capped, reference)
    )


def _invalid_share(runs: Sequence[RunResult]) -> float | None:
    """Return the share of decisions based on telemetry of another load; None if unknown."""
    checked = [run for run in runs if run.invalid_decisions is not None]
    decisions = sum(run.decisions for run in checked)
    return sum(run.invalid_decisions or 0 for run in checked) / decisions if decisions else None


def _shares(runs: Sequence[RunResult]) -> dict[str, float]:
    return {
        bucket: mean(run.buckets[bucket] / (run.wall_s * run.gpus) for run in runs)
        for bucket in runs[0].buckets
    }


def mean(values: Iterable[float]) -> float:
    """Return the mean."""
    return float(np.mean(np.fromiter(values, np.float64)))
