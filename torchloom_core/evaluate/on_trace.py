"""One trace of a study: what can be refused at once, and then everything that is found on it.

:mod:`torchloom_core.evaluate.evaluation` prepares all traces before it plays the first.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.config.schema import Allreduce, Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate import allreduce, assumptions
from torchloom_core.evaluate.allreduce.run import kernel_config
from torchloom_core.evaluate.allreduce.step_metrics import METRICS
from torchloom_core.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.evaluate.forecasts.external_scores import given_scores, score_given
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.over_fleets import Pool
from torchloom_core.evaluate.forecasts.scoring import Scoring, alone, scorer_of, split_ns
from torchloom_core.evaluate.goodput import sweep
from torchloom_core.evaluate.goodput.arms import FORECAST_POLICY, Arm
from torchloom_core.evaluate.goodput.candidates import (
    Asked,
    Forecaster,
    candidates,
    forecasters,
    refuse_twice,
)
from torchloom_core.evaluate.goodput.job import ticking, told
from torchloom_core.evaluate.goodput.run import Setting
from torchloom_core.evaluate.goodput.study import first_scene, run_study
from torchloom_core.evaluate.installed import policies
from torchloom_core.evaluate.open_loop import replay_policies
from torchloom_core.evaluate.preflight import (
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
from torchloom_core.evaluate.results import ReplayedPolicy, RunResult, TraceResults
from torchloom_core.evaluate.run_cache import RunCache
from torchloom_core.evaluate.wanted import Progress, Wanted
from torchloom_core.learning.forecast_score import ForecastScore
from torchloom_core.learning.skill import RANDOM
from torchloom_core.plugin.outlook import UNSAVED_WORK
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.feed.watched import watch

_DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class OnTrace:
    """A trace of a study, with what was asked of it.

    Attributes
    ----------
    name : str
        What it is called in the study.
    config : Config
        With the job of the trace, where it has one.
    until_ns : int, optional
        Time from here on is played and scored.
    """

    name: str
    wanted: Wanted
    bundle: Bundle
    config: Config
    until_ns: int | None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A trace of which nothing is left to refuse.

    Attributes
    ----------
    known : set of str
        Metrics that are measured.
    missing : dict of str to set of str
        Plugin to the metrics that it cannot do without and that are none of them.
    play : callable
        Does what was asked for; takes what is told how far it is.
    """

    on: OnTrace
    known: Set[str]
    missing: Mapping[str, set[str]]
    play: Callable[[Progress], TraceResults] = field(repr=False)


def prepare_simulation(on: OnTrace, store: Path) -> Prepared:
    """Make ready to play the arms on the fleet model, in a closed loop.

    Raises
    ------
    TorchloomError
        If anything that was asked for cannot be had.
    """
    wanted, bundle, config, asked = on.wanted, on.bundle, on.config, on.wanted.asked
    has_policies = asked.policies or (asked.config_path and config.policies)
    if asked.predictors and not has_policies:
        asked = replace(asked, policies=(FORECAST_POLICY,))
    arms = candidates(asked, config, policies())
    refuse_unread(asked, config, arms)
    refuse_growth(arms, config)
    source = _source(asked)
    ahead_s, missing = _needs(on, arms, source)
    refuse_short(ahead_s, config.evaluate.tick_s)
    setting = Setting(
        trace=str(bundle.path.absolute()),
        config=config,
        config_path=source,
        horizon_s=_horizon_s(wanted, ahead_s),
        from_ns=begin_ns(bundle, arms, on.until_ns),
    )
    check_days(setting, bundle, asked=wanted.days is not None, until_ns=on.until_ns)
    first_scene(setting)
    if wanted.sweep:
        sweep.check(setting, wanted.sweep)

    def play(progress: Progress) -> TraceResults:
        simulation = run_study(
            setting,
            arms,
            seeds=wanted.seeds,
            store=RunCache(store, RunResult),
            workforce=wanted.workforce,
            progress=lambda done, total: progress("runs", done, total),
            vary_costs=wanted.vary_costs,
            swept=wanted.sweep,
        )
        played = assumptions.of_simulation(setting, bundle, wanted.seeds)
        found = _results(on, arms, *assumptions.of_trace(bundle), *played)
        return replace(found, simulation=simulation)

    return Prepared(on=on, known={*bundle.metrics}, missing=missing, play=play)


def prepare_allreduce(on: OnTrace, job: Allreduce, store: Path) -> Prepared:
    """Make ready to play the arms on the trace's links, in a closed loop.

    Raises
    ------
    TorchloomError
        If anything that was asked for cannot be had.
    """
    wanted, bundle, config, asked = on.wanted, on.bundle, on.config, on.wanted.asked
    refuse_fleet_options(days=wanted.days, swept=wanted.sweep)
    found = candidates(asked, config, policies())
    refuse_unread(asked, config, found)
    arms = [allreduce.candidate(arm.name, arm.what, arm.policies, arm.predictors) for arm in found]
    source = _source(asked)
    plugins = built([kernel_config(config, arm) for arm in arms], source)
    setting = allreduce.Setting(
        trace=str(bundle.path.absolute()),
        config=config,
        job=job,
        config_path=source,
        from_ns=begin_ns(bundle, found, on.until_ns),
    )

    def play(progress: Progress) -> TraceResults:
        simulation = allreduce.run_study(
            setting,
            arms,
            seeds=wanted.seeds,
            store=RunCache(store, AllreduceRunResult),
            workforce=wanted.workforce,
            progress=lambda done, total: progress("runs", done, total),
        )
        said = assumptions.of_allreduce(setting, bundle, wanted.seeds)
        return replace(_results(on, found, *said), allreduce=simulation)

    known = {*METRICS}
    return Prepared(on=on, known=known, missing=unmeasured(plugins, known), play=play)


def prepare_replay(on: OnTrace, pool: Pool | None) -> Prepared:
    """Make ready to score forecasts and proposals, in an open loop.

    Parameters
    ----------
    pool : Pool, optional
        Takes the moments that predictors are scored on.

    Raises
    ------
    TorchloomError
        If anything that was asked for cannot be had.
    """
    wanted, bundle, config, asked = on.wanted, on.bundle, on.config, on.wanted.asked
    if wanted.sweep:
        raise ConfigError("--sweep: need --mode simulate, was replay: nobody answers there")
    arms = candidates(asked, config, policies())
    source = _source(asked)
    tested = forecasters(asked, config)
    ahead_s, missing = _needs(on, arms, source, tested)
    if not (tested or wanted.scores or arms):
        raise ConfigError("--mode replay: need a --predictor, --policy or --scores, was none")
    if any(name == RANDOM for name, _ in wanted.scores):
        raise ConfigError(f"--scores: need a name other than {RANDOM}, was {RANDOM!r}")
    refuse_twice("--scores", [one.label for one in tested] + [name for name, _ in wanted.scores])
    begins_ns = [begin_ns(bundle, [arm], on.until_ns) for arm in arms]
    task = Task(horizon_s=_horizon_s(wanted, ahead_s), repair_s=config.evaluate.repair_s)
    until_ns = split_ns(bundle) if on.until_ns is None else on.until_ns
    given = {
        name: given_scores(Path(file), bundle, task, until_ns=until_ns)
        for name, file in wanted.scores
    }
    scoring = Scoring(
        until_ns=on.until_ns, false_alarms_per_node_day=wanted.false_alarms_per_node_day
    )
    scorer = scorer_of(bundle, tested, config, scoring, source=source) if tested else None

    def play(progress: Progress) -> TraceResults:
        forecasts: list[ForecastScore] = []
        if scorer is not None:
            forecasts += scorer.scores(lambda share: progress("forecasts", share, 1.0), pool)
        for name, divided in given.items():
            forecasts.append(
                score_given(
                    name,
                    divided,
                    bundle,
                    task,
                    false_alarms_per_node_day=scoring.false_alarms_per_node_day,
                    seed=scoring.seed,
                )
            )
        replayed: list[ReplayedPolicy] = []
        for number, (arm, from_ns) in enumerate(zip(arms, begins_ns, strict=True)):
            progress("policies", number, len(arms))
            replayed.append(
                replay_policies(bundle, arm, config, task, from_ns=from_ns, source=source)
            )
        said = (*assumptions.of_trace(bundle), *assumptions.of_replay(tested, config))
        found = _results(on, arms, *said)
        return replace(found, forecasts=tuple(forecasts), policies=tuple(replayed))

    return Prepared(on=on, known={*bundle.metrics}, missing=missing, play=play)


def _source(asked: Asked) -> str:
    """Return the config file's name, for errors."""
    return str(asked.config_path or (DEFAULT_PATH if DEFAULT_PATH.exists() else "command line"))


def _needs(
    on: OnTrace, arms: Sequence[Arm], source: str, tested: Sequence[Forecaster] = ()
) -> tuple[list[tuple[str, float]], dict[str, set[str]]]:
    """Build all plugins once; return how far the arms look ahead, and what is not measured."""
    ticks = ticking(on.config)
    plugins = built(
        [replace(ticks, policies=arm.policies, predictors=arm.predictors) for arm in arms], source
    )
    known = {*on.bundle.metrics, UNSAVED_WORK}  # this one the job itself tells
    judges = [alone(one, on.config, source) for one in tested]
    return horizons_s(plugins), unmeasured([*plugins, *judges], known)


def _horizon_s(wanted: Wanted, ahead_s: list[tuple[str, float]]) -> float:
    longest_s = max((horizon_s for _, horizon_s in ahead_s), default=_DAY_S)
    return longest_s if wanted.horizon_s is None else wanted.horizon_s


def _results(on: OnTrace, arms: list[Arm], *said: str) -> TraceResults:
    """Return what is known of a trace before anything is found."""
    return TraceResults(trace=_trace(on), config=_shown(on.config, arms), assumptions=said)


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
    """Return what of the config had a say."""
    sections = {
        "evaluate": told(config.evaluate),
        "costs": told(config.costs),
        "arbiter": msgspec.to_builtins(config.arbiter),
    }
    if config.evaluate.allreduce is not None:
        sections["evaluate"] = {"allreduce": msgspec.to_builtins(config.evaluate.allreduce)}
        sections["weaver"] = msgspec.to_builtins(config.weaver)
        sections["guard"] = msgspec.to_builtins(config.guard)
    plugins = {arm.name: {"policies": arm.policies, "predictors": arm.predictors} for arm in arms}
    return {**sections, "arms": plugins}
