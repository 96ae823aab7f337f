"""Play all arms on all seeds in the closed loop, and compare them.

Finished runs are cached, so that an interrupted study resumes.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from torchloom_core.interface.reserve import Reserve
from torchloom_core.lab.activation.discovery import installed_policies
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.goodput import compare, sweep
from torchloom_core.lab.evaluate.goodput.arms import (
    baselines,
    random_alarms,
    tier_arms,
    without_policies,
)
from torchloom_core.lab.evaluate.goodput.compare import Runs
from torchloom_core.lab.evaluate.goodput.episode import opened
from torchloom_core.lab.evaluate.goodput.job import (
    job_spec,
    kernel_config,
    paid_nodes,
    reported_keys,
    standbys_of,
)
from torchloom_core.lab.evaluate.goodput.run import Setting, StudyTask
from torchloom_core.lab.evaluate.results import BreakEven, RunResult, SensitivityPoint, Simulation
from torchloom_core.lab.evaluate.run_cache import Runner

ORACLE = "oracle"
CLAIRVOYANT = "clairvoyant"

COSTS = ("restart_s", "detect_s", "migrate_s", "checkpoint_s")
FACTORS = (0.25, 1.0, 4.0)
COST_SEEDS = 10
"""Maximum number of seeds with varied costs, as there are many points."""

_DAY_S = 86_400.0


def _play(runner: Runner[RunResult], seeds: int, setting: Setting, arms: Sequence[Arm]) -> Runs:
    """Return the runs of every arm by name, in the order of the seeds."""
    return runner.play(
        [StudyTask(setting=setting, arm=arm, seed=seed) for arm in arms for seed in range(seeds)]
    )


def run_study(
    setting: Setting,
    candidates: Sequence[Arm],
    runner: Runner[RunResult],
    *,
    seeds: int,
    vary_costs: bool = True,
    swept: sweep.Range | None = None,
) -> Simulation:
    """Play all arms and compare them.

    ``vary_costs`` repeats the runs with other costs; ``swept`` is a number of spares or standbys to
    vary. ConfigError if an arm's config is wrong, TraceError if the trace is too small for the job.
    """
    arms = [*_affordable(setting, baselines(installed_policies(), setting.config.evaluate))]
    if setting.measured is not None and setting.config.evaluate.recovery == "restart":
        arms += tier_arms(setting.measured)
    arms += candidates
    events = opened(Path(setting.trace)).events()
    unknown = any(event.fatal and event.follows == "unknown" for event in events)
    watched = 1 + sum(bool(arm.policies) for arm in arms)
    total = (len(arms) + 1 + watched) * seeds + (len(candidates) + 2) * seeds * unknown
    points = len(COSTS) * len(FACTORS) * 2 * len(candidates)
    total += points * min(seeds, COST_SEEDS) * vary_costs
    swept_arms = sweep.arms_of(installed_policies(), candidates)
    total += len(swept_arms) * len(swept.values) * seeds if swept else 0
    runner.total = total
    play = partial(_play, runner, seeds)

    runs = dict(play(setting, arms))
    if ORACLE in runs:
        alarms = random_alarms(_alarm_rate(setting, candidates, runs))
        arms.insert(arms.index(_named(arms, ORACLE)), alarms)
        runs |= play(setting, [alarms])
    reference = compare.reference_of(arms, runs, setting.config.evaluate.recovery)
    oracle = ORACLE if ORACLE in runs else CLAIRVOYANT
    without = play(setting, [without_policies(arm) for arm in arms if arm.policies])
    summaries = compare.summarize(arms, runs, reference=reference, oracle=oracle, without=without)
    both = {}
    if unknown:
        chosen = [_named(arms, name) for name in (reference, oracle)] + [*candidates]
        other = play(replace(setting, unknown="job"), chosen)
        both = {
            way: compare.summarize(chosen, of, reference=reference, oracle=oracle, without={})
            for way, of in (("component", runs), ("job", other))
        }
    return Simulation(
        job=_job(setting),
        seeds=tuple(range(seeds)),
        reference=reference,
        oracle=oracle,
        horizon_s=setting.horizon_s,
        arms=summaries,
        runs=tuple(  # the page shows the timeline of the first seed
            run if run.seed == 0 else replace(run, timeline=())
            for arm in arms
            for run in runs[arm.name]
        ),
        break_even=_break_even(setting, runs),
        sensitivity=_vary_costs(partial(_play, runner, min(seeds, COST_SEEDS)), setting, candidates)
        if vary_costs
        else (),
        sweep=sweep.sweep(play, setting, swept, swept_arms) if swept else msgspec.UNSET,
        unknown_follows=both,
    )


def _affordable(setting: Setting, arms: Iterable[Arm]) -> Iterable[Arm]:
    """Return the arms that need no more nodes than are paid for."""
    evaluate = setting.config.evaluate
    nodes = evaluate.standbys * evaluate.nodes_per_group + evaluate.spares
    size = evaluate.nodes_per_group
    return (arm for arm in arms if standbys_of(arm, evaluate) * size <= nodes)


def _vary_costs(
    play: Callable[[Setting, Sequence[Arm]], Runs], setting: Setting, candidates: Sequence[Arm]
) -> tuple[SensitivityPoint, ...]:
    """Play each candidate, and the same job without it, with each cost in turn times a factor.

    With at most ``COST_SEEDS`` seeds, the gain at factor 1 equals that of the study.
    """
    points = []
    for cost in COSTS:
        for factor in FACTORS:
            costs = setting.config.costs
            changed = replace(costs, **{cost: getattr(costs, cost) * factor})
            other = replace(setting, config=replace(setting.config, costs=changed))
            runs = play(other, candidates)
            without = play(other, [without_policies(arm) for arm in candidates])
            points += [
                SensitivityPoint(
                    arm=arm.name,
                    cost=cost,
                    factor=factor,
                    gain=compare.gain(runs[arm.name], without[arm.name]),
                )
                for arm in candidates
            ]
    return tuple(points)


def _named(arms: Iterable[Arm], name: str) -> Arm:
    return next(arm for arm in arms if arm.name == name)


def _alarm_rate(setting: Setting, candidates: Sequence[Arm], runs: Runs) -> float:
    """Return the moves of the busiest candidate, else the job's failures, per node-day."""
    evaluate = setting.config.evaluate
    nodes = evaluate.groups * evaluate.nodes_per_group
    failures = [run.failures for run in runs["static_1h"]]
    moves = [[run.moves for run in runs[arm.name]] for arm in candidates]
    counts = max(moves, key=sum, default=failures)
    node_days = sum(run.wall_s for run in runs["static_1h"]) / _DAY_S * nodes
    return (sum(counts) or sum(failures)) / node_days


def _break_even(setting: Setting, runs: Runs) -> BreakEven:
    """Return the precision above which a move pays: ``p (D + R + unsaved) > G + away``.

    The rule of Aupy, Robert, Vivien and Zaidouni in GPU-seconds, with the cost of one standby less;
    the prices are those that the policies see, at the actual failure rate.
    """
    episode = setting.episode(0)
    base = Arm(name="", kind="candidate", what="")
    job = job_spec(base, setting.config, episode.mtbf_s)
    costs = kernel_config(base, setting.config, job).costs
    group_gpus = job.nodes_per_group * job.gpus_per_node
    run_gpus = job.groups * group_gpus
    stall_s = costs.detect_s + costs.restart_s + costs.unsaved_s
    loss_gpu_s = stall_s * run_gpus + costs.replace_s * group_gpus
    price_gpu_s, last_price_gpu_s = (
        Reserve(
            costs, run_gpus=run_gpus, failures_per_s=1.0 / episode.mtbf_s, left=left
        ).move_gpu_s(group_gpus)
        for left in (job.standbys - 1, min(job.standbys - 1, 0))
    )
    moves = {name: sum(run.moves for run in of) for name, of in runs.items()}
    return BreakEven(
        precision=price_gpu_s / loss_gpu_s if loss_gpu_s > 0 else float("inf"),
        loss_gpu_s=loss_gpu_s,
        price_gpu_s=price_gpu_s,
        last_price_gpu_s=last_price_gpu_s,
        measured={
            name: sum(run.right_moves for run in runs[name]) / count
            for name, count in moves.items()
            if count
        },
    )


def _job(setting: Setting) -> dict[str, object]:
    evaluate, costs = setting.config.evaluate, setting.config.costs
    job = reported_keys(evaluate)
    return {**job, "nodes_paid": paid_nodes(evaluate), "costs": reported_keys(costs)}
