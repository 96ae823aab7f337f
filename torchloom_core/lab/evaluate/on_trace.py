"""Prepare and evaluate one trace of a study.

:mod:`torchloom_core.lab.evaluate.evaluation` prepares all traces before it evaluates the first.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.config.evaluation import Allreduce
from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import ConfigError
from torchloom_core.interface.outlook import UNSAVED_WORK
from torchloom_core.lab.activation.discovery import installed_policies
from torchloom_core.lab.evaluate import assumptions
from torchloom_core.lab.evaluate.allreduce.run import Setting as LinkSetting
from torchloom_core.lab.evaluate.allreduce.run import kernel_config
from torchloom_core.lab.evaluate.allreduce.simulated_trainers import METRICS
from torchloom_core.lab.evaluate.allreduce.study import run_study as run_link_study
from torchloom_core.lab.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.forecasts.external_scores import given_scores, score_given
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.scores import Pool
from torchloom_core.lab.evaluate.forecasts.scoring import alone, scorer_of, split_ns
from torchloom_core.lab.evaluate.goodput import sweep
from torchloom_core.lab.evaluate.goodput.arms import FORECAST_POLICY
from torchloom_core.lab.evaluate.goodput.candidates import (
    Forecaster,
    Selection,
    candidates,
    forecasters,
    has_any_policy,
    refuse_twice,
)
from torchloom_core.lab.evaluate.goodput.job import reported_keys, ticking
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.evaluate.goodput.study import run_study
from torchloom_core.lab.evaluate.open_loop import replay_policies
from torchloom_core.lab.evaluate.preflight import (
    begin_ns,
    built,
    check_days,
    horizons_s,
    refuse_fleet_options,
    refuse_growth,
    refuse_short,
    refuse_unread,
    unmeasured,
)
from torchloom_core.lab.evaluate.request import EvaluationRequest, Progress
from torchloom_core.lab.evaluate.results import ReplayedPolicy, RunResult, TraceResults
from torchloom_core.lab.evaluate.run_cache import Runner
from torchloom_core.lab.learning.forecast_score import ForecastScore
from torchloom_core.lab.learning.skill import RANDOM
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.feed.watched import watch

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class OnTrace:
    """A trace of a study, with its request, and the config with the job of the trace if it has one.

    The evaluated time starts at ``until_ns``.
    """

    name: str
    request: EvaluationRequest
    bundle: Bundle
    config: Config
    until_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A trace that passed all checks, and the function that evaluates it.

    ``missing`` has, by plugin, the required metrics that are not ``measured``.
    """

    on: OnTrace
    measured: Set[str]
    missing: Mapping[str, set[str]]
    play: Callable[[Progress], TraceResults] = field(repr=False)


def prepare_simulation(on: OnTrace, store: Path) -> Prepared:
    """Prepare to play the arms on the fleet model; TorchloomError if the request is invalid."""
    request, bundle, config, selection = on.request, on.bundle, on.config, on.request.selection
    has_policies = selection.policies or (selection.config_path and has_any_policy(config))
    if selection.predictors and not has_policies:
        selection = replace(selection, policies=(FORECAST_POLICY,))
    arms = candidates(selection, config, installed_policies())
    refuse_unread(selection, config, arms)
    refuse_growth(arms, config)
    source = _source(selection)
    ahead_s, missing = _needs(on, arms, source)
    refuse_short(ahead_s, config.evaluate.tick_s)
    setting = Setting(
        trace=str(bundle.path.absolute()),
        config=config,
        config_path=source,
        horizon_s=_horizon_s(request, ahead_s),
        from_ns=begin_ns(bundle, arms, on.until_ns),
        measured=request.measured,
    )
    check_days(setting, bundle, is_option=request.days is not None, until_ns=on.until_ns)
    setting.episode(0)
    if request.sweep:
        sweep.check(setting, request.sweep)

    def play(progress: Progress) -> TraceResults:
        simulation = run_study(
            setting,
            arms,
            Runner(store, RunResult, request.workforce, partial(progress, "runs")),
            seeds=request.seeds,
            vary_costs=request.vary_costs,
            swept=request.sweep,
        )
        played = assumptions.of_simulation(setting, bundle, request.seeds)
        found = _results(on, arms, *assumptions.of_trace(bundle), *played)
        return replace(found, simulation=simulation)

    return Prepared(on=on, measured={*bundle.metrics}, missing=missing, play=play)


def prepare_allreduce(on: OnTrace, job: Allreduce, store: Path) -> Prepared:
    """Prepare to play the arms on the trace's links; TorchloomError if the request is invalid."""
    request, bundle, config, selection = on.request, on.bundle, on.config, on.request.selection
    refuse_fleet_options(
        days=request.days, swept=request.sweep, has_costs=request.measured is not None
    )
    arms = candidates(selection, config, installed_policies())
    refuse_unread(selection, config, arms)
    source = _source(selection)
    plugins = built([kernel_config(config, arm) for arm in arms], source)
    setting = LinkSetting(
        trace=str(bundle.path.absolute()),
        config=config,
        job=job,
        config_path=source,
        from_ns=begin_ns(bundle, arms, on.until_ns),
    )

    def play(progress: Progress) -> TraceResults:
        simulation = run_link_study(
            setting,
            arms,
            Runner(store, AllreduceRunResult, request.workforce, partial(progress, "runs")),
            seeds=request.seeds,
        )
        assumed = assumptions.of_allreduce(setting, bundle, request.seeds)
        return replace(_results(on, arms, *assumed), allreduce=simulation)

    measured = {*METRICS}
    missing = unmeasured(plugins, measured)
    return Prepared(on=on, measured=measured, missing=missing, play=play)


def prepare_replay(on: OnTrace, pool: Pool | None) -> Prepared:
    """Prepare to score forecasts and proposals; TorchloomError if the request is invalid."""
    request, bundle, config, selection = on.request, on.bundle, on.config, on.request.selection
    if request.sweep:
        raise ConfigError("--sweep: need --mode simulate, was replay, which simulates no job")
    arms = candidates(selection, config, installed_policies())
    source = _source(selection)
    tested = forecasters(selection, config)
    ahead_s, missing = _needs(on, arms, source, tested)
    if not (tested or request.scores or arms):
        raise ConfigError("--mode replay: need a --predictor, --policy or --scores, was none")
    if any(name == RANDOM for name, _ in request.scores):
        raise ConfigError(f"--scores: need a name other than {RANDOM}, was {RANDOM!r}")
    refuse_twice("--scores", [one.label for one in tested] + [name for name, _ in request.scores])
    begins_ns = [begin_ns(bundle, [arm], on.until_ns) for arm in arms]
    task = Task(horizon_s=_horizon_s(request, ahead_s), repair_s=config.evaluate.repair_s)
    until_ns = split_ns(bundle) if on.until_ns is None else on.until_ns
    given = {
        name: given_scores(Path(file), bundle, task, until_ns=until_ns)
        for name, file in request.scores
    }
    budget = {"false_alarms_per_node_day": request.false_alarms_per_node_day}
    scorer = None
    if tested:
        scorer = scorer_of(bundle, tested, config, until_ns=on.until_ns, source=source, **budget)

    def play(progress: Progress) -> TraceResults:
        forecasts: list[ForecastScore] = []
        if scorer is not None:
            forecasts += scorer.scores(lambda share: progress("forecasts", share, 1.0), pool)
        for name, scores in given.items():
            forecasts.append(score_given(name, scores, bundle, task, **budget))
        replayed: list[ReplayedPolicy] = []
        for number, (arm, from_ns) in enumerate(zip(arms, begins_ns, strict=True)):
            progress("policies", number, len(arms))
            replayed.append(
                replay_policies(bundle, arm, config, task, from_ns=from_ns, source=source)
            )
        assumed = (*assumptions.of_trace(bundle), *assumptions.of_replay(tested, config))
        found = _results(on, arms, *assumed)
        return replace(found, forecasts=tuple(forecasts), policies=tuple(replayed))

    return Prepared(on=on, measured={*bundle.metrics}, missing=missing, play=play)


def _source(selection: Selection) -> str:
    """Return the config file's name, for errors."""
    return str(selection.config_path or (DEFAULT_PATH if DEFAULT_PATH.exists() else "command line"))


def _needs(
    on: OnTrace, arms: Sequence[Arm], source: str, tested: Sequence[Forecaster] = ()
) -> tuple[list[tuple[str, float]], dict[str, set[str]]]:
    """Build all plugins once; return the arms' horizons and the missing metrics by plugin."""
    ticks = ticking(on.config)
    plugins = built([arm.activated(ticks) for arm in arms], source)
    measured = {*on.bundle.metrics, UNSAVED_WORK}  # the simulated job reports this one
    judges = [alone(one, on.config, source) for one in tested]
    return horizons_s(plugins), unmeasured([*plugins, *judges], measured)


def _horizon_s(request: EvaluationRequest, ahead_s: list[tuple[str, float]]) -> float:
    longest_s = max((horizon_s for _, horizon_s in ahead_s), default=_DAY_S)
    return longest_s if request.horizon_s is None else request.horizon_s


def _results(on: OnTrace, arms: list[Arm], *assumed: str) -> TraceResults:
    """Return the results of a trace without forecasts, policies and simulation."""
    return TraceResults(trace=_trace(on), config=_shown(on.config, arms), assumptions=assumed)


def _trace(on: OnTrace) -> dict[str, Any]:
    manifest = on.bundle.manifest
    return {
        "name": on.name,
        "start_ns": manifest.start_ns,
        "end_ns": manifest.end_ns,
        "source": manifest.source,
        "licence": manifest.licence,
        "synthetic": manifest.synthetic,
        "digest": on.bundle.digest(),
        "failures": sum(event.fatal for event in on.bundle.events()),
        "watched": watch(on.bundle).kind,
    }


def _shown(config: Config, arms: list[Arm]) -> dict[str, Any]:
    """Return the parts of the config that affect the results."""
    sections = {
        "evaluate": reported_keys(config.evaluate),
        "costs": reported_keys(config.costs),
        "arbiter": msgspec.to_builtins(config.arbiter),
    }
    if config.evaluate.allreduce is not None:
        sections["evaluate"] = {"allreduce": msgspec.to_builtins(config.evaluate.allreduce)}
        sections["weaver"] = msgspec.to_builtins(config.weaver)
        sections["guard"] = msgspec.to_builtins(config.guard)
    plugins = {arm.name: {"policies": arm.policies, "predictors": arm.predictors} for arm in arms}
    for arm in arms:
        if arm.roles:
            plugins[arm.name]["roles"] = arm.roles
    return {**sections, "arms": plugins}
