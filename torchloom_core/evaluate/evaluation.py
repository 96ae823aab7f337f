"""An evaluation from what a person asked for to the report: ``torchloom evaluate`` calls it."""

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from torchloom_core import __version__
from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.config.schema import Allreduce, Config
from torchloom_core.errors import ConfigError
from torchloom_core.evaluate import allreduce, assumptions
from torchloom_core.evaluate.allreduce.run import kernel_config
from torchloom_core.evaluate.allreduce.step_metrics import METRICS
from torchloom_core.evaluate.allreduce_results import AllreduceRunResult
from torchloom_core.evaluate.forecasts.external_scores import given_scores, score_given
from torchloom_core.evaluate.forecasts.labels import Task
from torchloom_core.evaluate.forecasts.leaks import refuse_foreknown
from torchloom_core.evaluate.forecasts.scoring import Scoring, score_predictors, split_ns
from torchloom_core.evaluate.goodput import sweep
from torchloom_core.evaluate.goodput.arms import FORECAST_POLICY, Arm
from torchloom_core.evaluate.goodput.candidates import Asked, candidates, forecasters, refuse_twice
from torchloom_core.evaluate.goodput.job import of_trace, ticking, told
from torchloom_core.evaluate.goodput.run import Setting
from torchloom_core.evaluate.goodput.study import run_study
from torchloom_core.evaluate.goodput.sweep import Range
from torchloom_core.evaluate.installed import policies
from torchloom_core.evaluate.open_loop import replay_policies
from torchloom_core.evaluate.parallel import Workforce
from torchloom_core.evaluate.preflight import (
    begin_ns,
    built,
    check_days,
    check_until,
    horizons_s,
    job_on_links,
    refuse_fleet_options,
    refuse_growth,
    refuse_short,
    refuse_unread,
    say_beyond,
    say_unmeasured,
)
from torchloom_core.evaluate.results import ReplayedPolicy, Report, RunResult
from torchloom_core.evaluate.run_cache import RunCache
from torchloom_core.learning.forecast_score import ForecastScore
from torchloom_core.plugin.outlook import UNSAVED_WORK
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.checksums import refuse_changed

Mode = Literal["replay", "simulate"]

_DAY_S = 86_400.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation that was asked for.

    Attributes
    ----------
    scores : tuple of (str, str)
        Name and file of forecasts that were made elsewhere; for replay.
    days : float, optional
        Length of a run in place of ``[evaluate] days``; the trace must have as many.
    vary_costs : bool
        Whether to play with other costs as well.
    sweep : Range, optional
        Of what to play more and more as well, for simulate mode.
    horizon_s : float, optional
        In which time given scores and what a policy does must prove right; absent: the longest
        horizon of the policies' predictors, a day without any.
    """

    trace: Path
    config: Config
    asked: Asked
    mode: Mode = "simulate"
    scores: tuple[tuple[str, str], ...] = ()
    scoring: Scoring = Scoring()
    days: float | None = None
    horizon_s: float | None = None
    seeds: int = 10
    vary_costs: bool = True
    sweep: Range | None = None
    workforce: Workforce = Workforce()


Progress = Callable[[str, float, float], None]
"""Told what is being done, how much of it is over, and how much there is."""


def evaluate(wanted: Wanted, store: Path, progress: Progress) -> Report:
    """Do it.

    Parameters
    ----------
    store : Path
        Folder of the finished runs.

    Raises
    ------
    TorchloomError
        If anything that was asked for cannot be had.
    """
    bundle = Bundle.open(wanted.trace)
    refuse_changed(bundle.path, bundle.manifest.files)
    refuse_foreknown(bundle)
    say_beyond(bundle)
    check_until(bundle, wanted.scoring.until_ns)
    config = of_trace(wanted.config, bundle)
    if wanted.days is not None:
        config = replace(config, evaluate=replace(config.evaluate, days=wanted.days))
    if wanted.mode == "replay":
        return _replay(wanted, bundle, config, progress)
    if wanted.scores:
        raise ConfigError("--scores: need --mode replay, was simulate: nobody acts on given scores")
    job = job_on_links(bundle, config)
    if job is not None:
        return _simulate_allreduce(wanted, bundle, config, job, store, progress)
    return _simulate(wanted, bundle, config, store, progress)


def _simulate(
    wanted: Wanted, bundle: Bundle, config: Config, store: Path, progress: Progress
) -> Report:
    """Play the arms on the fleet model, in a closed loop."""
    asked = wanted.asked
    has_policies = asked.policies or (asked.config_path and config.policies)
    if asked.predictors and not has_policies:
        asked = replace(asked, policies=(FORECAST_POLICY,))
    arms = candidates(asked, config, policies())
    refuse_unread(asked, config, arms)
    refuse_growth(arms, config)
    source = _source(asked)
    ahead_s = _horizons_s(arms, config, source, bundle)
    refuse_short(ahead_s, config.evaluate.tick_s)
    setting = Setting(
        trace=str(wanted.trace.absolute()),
        config=config,
        config_path=source,
        horizon_s=_horizon_s(wanted, ahead_s),
        from_ns=begin_ns(bundle, arms, wanted.scoring.until_ns),
    )
    check_days(setting, bundle, asked=wanted.days is not None, until_ns=wanted.scoring.until_ns)
    if wanted.sweep:
        sweep.check(setting, wanted.sweep)
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
    said = tuple(assumptions.of_simulation(setting, bundle, wanted.seeds))
    report = _report(wanted, bundle, config, arms)
    return replace(report, simulation=simulation, assumptions=report.assumptions + said)


def _simulate_allreduce(
    wanted: Wanted, bundle: Bundle, config: Config, job: Allreduce, store: Path, progress: Progress
) -> Report:
    """Play the arms on the trace's links, in a closed loop."""
    refuse_fleet_options(days=wanted.days, swept=wanted.sweep)
    asked, source = wanted.asked, _source(wanted.asked)
    found = candidates(asked, config, policies())
    refuse_unread(asked, config, found)
    arms = [allreduce.candidate(arm.name, arm.what, arm.policies, arm.predictors) for arm in found]
    plugins = built([kernel_config(config, arm) for arm in arms], source)
    say_unmeasured(plugins, {*METRICS}, "simulated trainers do not report")
    setting = allreduce.Setting(
        trace=str(wanted.trace.absolute()),
        config=config,
        job=job,
        config_path=source,
        from_ns=begin_ns(bundle, found, wanted.scoring.until_ns),
    )
    simulation = allreduce.run_study(
        setting,
        arms,
        seeds=wanted.seeds,
        store=RunCache(store, AllreduceRunResult),
        workforce=wanted.workforce,
        progress=lambda done, total: progress("runs", done, total),
    )
    report = _report(wanted, bundle, config, found)
    said = tuple(assumptions.of_allreduce(setting, bundle, wanted.seeds))
    return replace(report, allreduce=simulation, assumptions=said)


def _replay(wanted: Wanted, bundle: Bundle, config: Config, progress: Progress) -> Report:
    """Score forecasts and proposals, in an open loop."""
    if wanted.sweep:
        raise ConfigError("--sweep: need --mode simulate, was replay: nobody answers there")
    asked, scoring = wanted.asked, wanted.scoring
    arms = candidates(asked, config, policies())
    source = _source(asked)
    tested = forecasters(asked, config)
    ahead_s = _horizons_s(arms, config, source, bundle, beside={one.name for one in tested})
    if not (tested or wanted.scores or arms):
        raise ConfigError("--mode replay: need a --predictor, --policy or --scores, was none")
    refuse_twice("--scores", [one.label for one in tested] + [name for name, _ in wanted.scores])
    begins_ns = [begin_ns(bundle, [arm], scoring.until_ns) for arm in arms]
    task = Task(horizon_s=_horizon_s(wanted, ahead_s), repair_s=config.evaluate.repair_s)
    until_ns = split_ns(bundle) if scoring.until_ns is None else scoring.until_ns
    given = {
        name: given_scores(Path(file), bundle, task, until_ns=until_ns)
        for name, file in wanted.scores
    }
    forecasts: list[ForecastScore] = []
    if tested:
        forecasts += score_predictors(
            bundle,
            tested,
            config,
            scoring,
            source=source,
            progress=lambda share: progress("forecasts", share, 1.0),
        )
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
        replayed.append(replay_policies(bundle, arm, config, task, from_ns=from_ns, source=source))
    report = _report(wanted, bundle, config, arms)
    return replace(
        report,
        forecasts=tuple(forecasts),
        policies=tuple(replayed),
        assumptions=report.assumptions + tuple(assumptions.of_replay()),
    )


def _source(asked: Asked) -> str:
    """Return the config file's name, for errors."""
    return str(asked.config_path or (DEFAULT_PATH if DEFAULT_PATH.exists() else "command line"))


def _horizons_s(
    arms: list[Arm], config: Config, source: str, bundle: Bundle, *, beside: Set[str] = frozenset()
) -> list[tuple[str, float]]:
    """Build the arms' plugins once; say what the trace does not measure of what they read."""
    ticks = ticking(config)
    plugins = built(
        [replace(ticks, policies=arm.policies, predictors=arm.predictors) for arm in arms], source
    )
    known = {*bundle.metrics, UNSAVED_WORK}  # this one the job itself tells
    say_unmeasured(plugins, known, "the trace has not", beside=beside)
    return horizons_s(plugins)


def _horizon_s(wanted: Wanted, ahead_s: list[tuple[str, float]]) -> float:
    longest_s = max((horizon_s for _, horizon_s in ahead_s), default=_DAY_S)
    return longest_s if wanted.horizon_s is None else wanted.horizon_s


def _report(wanted: Wanted, bundle: Bundle, config: Config, arms: list[Arm]) -> Report:
    return Report(
        trace=_trace(bundle),
        mode=wanted.mode,
        config=_shown(config, arms),
        assumptions=tuple(assumptions.of_trace(bundle)),
        torchloom=__version__,
    )


def _trace(bundle: Bundle) -> dict[str, Any]:
    manifest = bundle.manifest
    return {
        "name": manifest.name,
        "start_ns": manifest.start_ns,
        "end_ns": manifest.end_ns,
        "source": manifest.source,
        "licence": manifest.licence,
        "synthetic": manifest.synthetic,
        "digest": bundle.digest(),
        "failures": sum(event.fatal for event in bundle.events()),
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
