"""One run: an arm under one seed, from the trace to what it came to.

The study calls :func:`simulate` for every pair, in whatever process.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.activation.activation import activate
from torchloom_core.clock import SECOND_NS
from torchloom_core.config.schema import Config
from torchloom_core.evaluate.closed_loop import ClosedLoop
from torchloom_core.evaluate.goodput.arms import Arm
from torchloom_core.evaluate.goodput.episode import Episode, Unknown, episode_of
from torchloom_core.evaluate.goodput.job import job_spec, kernel_config
from torchloom_core.evaluate.goodput.oracles import FORETOLD_INFO, Foretold, know_it_all
from torchloom_core.evaluate.goodput.simulated_fleet import SimulatedFleet, entry_of, is_told
from torchloom_core.evaluate.installed import installed
from torchloom_core.evaluate.results import RunResult, TimelineEntry
from torchloom_core.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin.needs import windows_s
from torchloom_core.simulate.model import FleetModel
from torchloom_core.simulate.records import Result
from torchloom_core.simulate.scenario import JobSpec

MAX_TIMELINE = 2000
"""What a run's timeline keeps at most, the oldest first."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs of a study have in common.

    Attributes
    ----------
    config : Config
        The job, the costs and the rails; policies and predictors are the arms'.
    unknown : "component" or "job"
        How a failure is taken of which nobody knows what it follows.
    from_ns : int, optional
        Nothing before it is played.
    horizon_s : float
        How far ahead the oracle is told, and in which time a move must prove right.
    """

    trace: str
    config: Config
    config_path: str = "torchloom.toml"
    unknown: Unknown = "component"
    from_ns: int | None = None
    horizon_s: float = 86_400.0


def simulate(setting: Setting, arm: Arm, seed: int) -> RunResult:
    """Play one run.

    Raises
    ------
    ConfigError
        If the arm's config is wrong.
    TraceError
        If the trace is too small for the job.
    """
    return play(setting, arm, _scene(setting, seed))


def play(setting: Setting, arm: Arm, stage: Episode) -> RunResult:
    """Play one run in an episode that is drawn already."""
    job = job_spec(arm, setting.config, stage.mtbf_s)
    hits = () if arm.foresight == "no_failures" else stage.hits
    model = FleetModel(
        job,
        stage.nodes,
        hits,
        start_ns=stage.start_ns,
        end_ns=stage.end_ns,
        racks=stage.racks,
    )
    if arm.policies:
        return _watched(setting, arm, stage, job, model)
    if arm.foresight == "clairvoyant":
        happenings = know_it_all(model, job, hits, stage.end_ns)
    else:
        happenings = model.advance(stage.end_ns)
    timeline = [entry_of(happening) for happening in happenings if is_told(happening)]
    return _result(arm, stage.seed, model.finish(), timeline)


def _scene(setting: Setting, seed: int) -> Episode:
    return episode_of(
        Path(setting.trace),
        setting.config.evaluate,
        seed,
        unknown=setting.unknown,
        from_ns=setting.from_ns,
    )


def _watched(
    setting: Setting, arm: Arm, stage: Episode, job: JobSpec, model: FleetModel
) -> RunResult:
    config = kernel_config(arm, setting.config, job)
    plugins = plugins_of(arm, config, setting, stage)
    metrics = windows_s(plugins.needs)
    fleet = SimulatedFleet(stage, job, model, config.run.name, metrics, setting.horizon_s)
    loop = ClosedLoop(fleet, config, plugins, start_ns=stage.start_ns, told=stage.told)
    loop.run()
    result = _result(arm, stage.seed, model.finish(), fleet.timeline)
    return replace(
        result,
        decisions=fleet.decisions,
        invalid_decisions=fleet.invalid_decisions,
        moves=fleet.moves,
        right_moves=fleet.right_moves,
        operations=loop.verdict_counts.operations(),
        quarantined=loop.quarantined,
        silent=loop.silent,
    )


def plugins_of(arm: Arm, config: Config, setting: Setting, stage: Episode) -> ActivePlugins:
    """Build the arm's plugins anew, and tell the future to the one that may know it."""
    if arm.foresight:
        options = {
            "kind": arm.foresight,
            "horizon_s": setting.horizon_s,
            "every_s": config.evaluate.tick_s,
            "alarms_per_node_day": arm.alarms_per_node_day,
            "seed": stage.seed,
        }
        config = replace(config, predictors={**config.predictors, FORETOLD_INFO.name: options})
    plugins = activate(config, [FORETOLD_INFO, *installed()], setting.config_path)
    for predictor in plugins.predictors.values():
        if isinstance(predictor, Foretold):
            predictor.be_told(stage.hits)
    return plugins


def _result(arm: Arm, seed: int, came_to: Result, timeline: Sequence[TimelineEntry]) -> RunResult:
    buckets: dict[str, Any] = {
        bucket: gpu_ns / SECOND_NS for bucket, gpu_ns in came_to.buckets.items()
    }
    as_planned = came_to.goodput_as_planned if came_to.surplus else msgspec.UNSET
    return RunResult(
        arm=arm.name,
        seed=seed,
        wall_s=came_to.wall_s,
        gpus=came_to.gpus,
        job_gpus=came_to.job_gpus,
        buckets=buckets,
        goodput=came_to.goodput,
        as_planned=as_planned,
        ettr=came_to.ettr,
        failures=came_to.failures,
        migrations=came_to.migrations,
        saves=came_to.saves,
        proactive_saves=came_to.proactive_saves,
        model_events=came_to.events,
        timeline=tuple(timeline[:MAX_TIMELINE]),
    )
