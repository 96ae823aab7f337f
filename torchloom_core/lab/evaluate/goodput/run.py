"""Play one run, an arm under one seed, and return its result.

The study plays a :class:`StudyTask` for every pair of arm and seed, in worker processes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from torchloom_core.config.schema import Config
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.closed_loop import ClosedLoop
from torchloom_core.lab.evaluate.goodput.episode import Episode, Unknown, draw, opened
from torchloom_core.lab.evaluate.goodput.job import job_spec, kernel_config
from torchloom_core.lab.evaluate.goodput.oracles import (
    SCRIPTED_INFO,
    ScriptedPredictor,
    run_clairvoyant,
)
from torchloom_core.lab.evaluate.goodput.simulated_fleet import SimulatedFleet, timeline_of
from torchloom_core.lab.evaluate.measured_costs import MeasuredCosts
from torchloom_core.lab.evaluate.results import RunResult, TimelineEntry
from torchloom_core.lab.evaluate.run_cache import key_of
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.records import Result
from torchloom_core.lab.simulate.scenario import JobSpec
from torchloom_core.live.kernel.plugins.host import ActivePlugins

MAX_TIMELINE = 2000
"""Maximum number of timeline entries of a run, the oldest first."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all runs of a study share; policies and predictors come from the arms.

    Failures of unknown cause are assumed to follow ``unknown``. Runs start from ``from_ns`` on.
    ``horizon_s`` is the oracle's, and the time within which a move must prove right. ``measured``
    has the tiers of checkpoints that have an arm of their own; the config has its costs already.
    """

    trace: str
    config: Config
    config_path: str = "torchloom.toml"
    unknown: Unknown = "component"
    from_ns: int | None = None
    horizon_s: float = 86_400.0
    measured: MeasuredCosts | None = None

    def episode(self, seed: int) -> Episode:
        """Return the episode of a seed; TraceError if the trace is too small for the job."""
        bundle, evaluate = opened(Path(self.trace)), self.config.evaluate
        return draw(bundle, evaluate, seed, unknown=self.unknown, from_ns=self.from_ns)


class StudyTask(msgspec.Struct, frozen=True, kw_only=True):
    """One run to play."""

    setting: Setting
    arm: Arm
    seed: int

    @property
    def key(self) -> str:
        """The hash of trace, job, costs, safety limits, arm, seed, models and code."""
        setting, config = self.setting, self.setting.config
        parts = [
            opened(Path(setting.trace)).digest(),
            [config.run, config.weaver, config.costs, config.arbiter, config.evaluate],
            [setting.unknown, setting.from_ns, setting.horizon_s],
            replace(self.arm, name="", what="", kind="candidate", needs_forecast=False),
            self.seed,
        ]
        return key_of(parts, self.arm.predictors)

    def play(self) -> RunResult:
        """Play it."""
        return simulate(self.setting, self.arm, self.seed)


def simulate(setting: Setting, arm: Arm, seed: int) -> RunResult:
    """Play one run; TraceError if the trace is too small, ConfigError if the arm is wrong."""
    return play(setting, arm, setting.episode(seed))


def play(setting: Setting, arm: Arm, episode: Episode) -> RunResult:
    """Play one run in a given episode."""
    job = job_spec(arm, setting.config, episode.mtbf_s, episode.several_nodes_mtbf_s)
    hits = () if arm.foresight == "no_failures" else episode.hits
    model = FleetModel(
        job,
        episode.nodes,
        hits,
        start_ns=episode.start_ns,
        end_ns=episode.end_ns,
        racks=episode.racks,
    )
    if arm.policies:
        return _play_closed_loop(setting, arm, episode, job, model)
    if arm.foresight == "clairvoyant":
        fleet_events = run_clairvoyant(model, job, hits, episode.end_ns)
    else:
        fleet_events = model.advance(episode.end_ns)
    return _result(arm, episode.seed, model.finish(), timeline_of(fleet_events))


def _play_closed_loop(
    setting: Setting, arm: Arm, episode: Episode, job: JobSpec, model: FleetModel
) -> RunResult:
    config = kernel_config(arm, setting.config, job)
    plugins = plugins_of(arm, config, setting, episode)
    metrics = windows_s(plugins.needs)
    fleet = SimulatedFleet(episode, job, model, config.run.name, metrics, setting.horizon_s)
    loop = ClosedLoop(
        fleet,
        config,
        plugins,
        start_ns=episode.start_ns,
        observable_faults=episode.observable_faults,
    )
    loop.run()
    result = _result(arm, episode.seed, model.finish(), fleet.timeline)
    return replace(
        result,
        decisions=fleet.decisions,
        invalid_decisions=fleet.invalid_decisions,
        moves=fleet.moves,
        right_moves=fleet.right_moves,
        operations=loop.operations,
        quarantined=loop.quarantined,
        silent=loop.silent,
    )


def plugins_of(arm: Arm, config: Config, setting: Setting, episode: Episode) -> ActivePlugins:
    """Build new plugins for the arm, and pass the hits to the scripted predictor."""
    if arm.foresight:
        options = {
            "kind": arm.foresight,
            "horizon_s": setting.horizon_s,
            "every_s": config.evaluate.tick_s,
            "alarms_per_node_day": arm.alarms_per_node_day,
            "seed": episode.seed,
        }
        config = replace(config, predictors={**config.predictors, SCRIPTED_INFO.name: options})
    plugins = activate(config, [SCRIPTED_INFO, *installed()], setting.config_path)
    for predictor in plugins.predictors.values():
        if isinstance(predictor, ScriptedPredictor):
            predictor.set_hits(episode.hits)
    return plugins


def _result(arm: Arm, seed: int, result: Result, timeline: Sequence[TimelineEntry]) -> RunResult:
    buckets: dict[str, Any] = {
        bucket: gpu_ns / SECOND_NS for bucket, gpu_ns in result.buckets.items()
    }
    as_planned = result.goodput_as_planned if result.surplus else msgspec.UNSET
    return RunResult(
        arm=arm.name,
        seed=seed,
        wall_s=result.wall_s,
        gpus=result.gpus,
        job_gpus=result.job_gpus,
        buckets=buckets,
        goodput=result.goodput,
        as_planned=as_planned,
        ettr=result.ettr,
        failures=result.failures,
        migrations=result.migrations,
        saves=result.saves,
        proactive_saves=result.proactive_saves,
        model_events=result.events,
        timeline=tuple(timeline[:MAX_TIMELINE]),
    )
