"""Play all arms on all seeds on a bandwidth trace, and compare them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from torchloom_core.config.evaluation import Allreduce
from torchloom_core.lab.evaluate.allreduce.run import Setting, StudyTask, goal_of
from torchloom_core.lab.evaluate.allreduce_results import (
    AllreduceArm,
    AllreduceRunResult,
    AllreduceSimulation,
)
from torchloom_core.lab.evaluate.arm import Arm, mean_verdicts
from torchloom_core.lab.evaluate.goodput.compare import interval, mean, paired, share_of_gain
from torchloom_core.lab.evaluate.run_cache import Runner
from torchloom_core.lab.learning.forecast_score import Interval

ORACLE = "oracle"

Runs = Mapping[str, Sequence[AllreduceRunResult]]
"""Arm to its runs, in the common order of seeds."""

_MOST_POINTS = 2000
"""Maximum number of points of the slowest link in the report."""


def run_study(
    setting: Setting,
    candidates: Sequence[Arm],
    runner: Runner[AllreduceRunResult],
    *,
    seeds: int,
) -> AllreduceSimulation:
    """Play all arms and compare them.

    ConfigError if an arm's config is wrong, or the trace too short; TraceError if the trace has
    invalid or too few links.
    """
    arms = [*_built_in(setting.job), *candidates]
    goal, links = goal_of(setting), setting.links
    runner.total = len(arms) * seeds
    runs = runner.play(
        [
            StudyTask(setting=setting, goal=goal, arm=arm, seed=seed)
            for arm in arms
            for seed in range(seeds)
        ]
    )
    reference = reference_of(arms, runs)
    wire = links.bottleneck
    every = -(-len(wire.at_s) // _MOST_POINTS)
    return AllreduceSimulation(
        job={**msgspec.to_builtins(setting.job), "ranks": len(links.workers)},
        seeds=tuple(range(seeds)),
        progress=goal.progress,
        reference=reference,
        oracle=ORACLE,
        span_s=wire.span_s,
        slowest_link=tuple(zip(wire.at_s, wire.bytes_per_s, strict=True))[::every],
        arms=tuple(_summary(arm, runs, reference) for arm in arms),
        runs=tuple(  # the page shows the curve of the first seed
            run if run.seed == 0 else replace(run, modes=(), curve=())
            for arm in arms
            for run in runs[arm.name]
        ),
    )


def _built_in(job: Allreduce) -> list[Arm]:
    """Return the static modes of the config, and the oracle."""
    static = [
        Arm(name=f"static {mode}", kind="baseline", what=f"mode {mode} all the time", mode=mode)
        for mode in job.modes
    ]
    what = "each step in the mode with the most progress per second, at no cost"
    return [*static, Arm(name=ORACLE, kind="oracle", what=what)]


def reference_of(arms: Iterable[Arm], runs: Runs) -> str:
    """Return the static mode with the most progress per hour, on the mean over seeds."""
    static = [arm.name for arm in arms if arm.mode]
    return max(static, key=lambda name: _rate(runs[name]))


def speedup(
    runs: Sequence[AllreduceRunResult], reference: Sequence[AllreduceRunResult]
) -> Interval:
    """Return the ratio to the reference in progress per hour, paired by seed."""
    pairs = zip(runs, reference, strict=True)
    return paired((ours.progress_per_h / its.progress_per_h for ours, its in pairs), equal=1.0)


def _summary(arm: Arm, runs: Runs, reference: str) -> AllreduceArm:
    own = runs[arm.name]
    to_oracle = share_of_gain(_rate(own), _rate(runs[ORACLE]), _rate(runs[reference]))
    times_s = [run.time_s for run in own if run.time_s is not None]
    return AllreduceArm(
        name=arm.name,
        kind=arm.kind,
        what=arm.what,
        time_s=interval(times_s) if len(times_s) == len(own) else None,
        progress_per_h=interval(run.progress_per_h for run in own),
        speedup=None if arm.name == reference else speedup(own, runs[reference]),
        to_oracle=to_oracle if arm.kind == "candidate" else None,
        in_mode={mode: mean(run.in_mode[mode] for run in own) for mode in own[0].in_mode},
        switches=mean(run.switches for run in own),
        steps=mean(run.steps for run in own),
        decisions=mean(run.decisions for run in own),
        operations=mean_verdicts([run.operations for run in own]),
        quarantined={name: why for run in own for name, why in run.quarantined.items()},
        silent=dict(sorted(Counter(name for run in own for name in run.silent).items())),
    )


def _rate(runs: Sequence[AllreduceRunResult]) -> float:
    return mean(run.progress_per_h for run in runs)
