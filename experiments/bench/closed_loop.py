"""The closed loop of ``torchloom evaluate``: how fast the fleet model is while policies watch."""

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

from figure import Figure, medians
from msgspec.structs import replace

from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.goodput.run import Setting, simulate
from torchloom_core.lab.trace import Parameters, synthesize

_LIMIT_PER_S = 100_000
_NODES = 256
_DAYS = 30.0
_STORM_PER_NODE_DAY = 1.0

_WATCHING: dict[str, dict[str, Any]] = {
    "thresholds": {"rules": [{"metric": "unsaved_work_s", "level": 3600.0}]},
    "straggler": {},
    "silence": {"heartbeat_limit_s": 3600.0, "progress_limit_s": 3600.0},
    "checkpoint_interval": {},
}
_FORECASTING = _WATCHING | {"failure_forecast": {"predictor": "fault_history"}}
_PREDICTORS: dict[str, dict[str, Any]] = {"fault_history": {}}

_BARE = Arm(name="bare", kind="baseline", what="no policy watches")
_WATCHED = Arm(
    name="watched", kind="candidate", what="policies watch", interval="first", policies=_WATCHING
)
_FORECAST = replace(_WATCHED, name="forecast", policies=_FORECASTING, predictors=_PREDICTORS)


async def measure(repeats: int, *, tiny: bool) -> list[Figure]:
    """Play runs of a backtest, with and without policies, in turns."""
    days = 0.5 if tiny else _DAYS
    with tempfile.TemporaryDirectory(prefix="torchloom-bench-") as folder:
        usual = _setting(Path(folder) / "usual.tltrace", days, Parameters().faults_per_node_day)
        storm = _setting(Path(folder) / "storm.tltrace", days, _STORM_PER_NODE_DAY)
        storm = replace(storm, config=_per_step(storm.config))
        rows = [
            {
                "watched_events_per_s": _events_per_s(usual, _WATCHED),
                "unwatched_events_per_s": _events_per_s(usual, _BARE),
                "forecasting_events_per_s": _events_per_s(usual, _FORECAST),
                "only_failures_watched_events_per_s": _events_per_s(storm, _WATCHED),
            }
            for _ in range(repeats)
        ]
    return [
        Figure(
            "watched",
            f"fleet-model events/s with {len(_WATCHING)} policies, closed loop / 100,000",
            1,
            "at least",
            [row["watched_events_per_s"] / _LIMIT_PER_S for row in rows],
            medians(rows),
        )
    ]


def _setting(trace: Path, days: float, faults_per_node_day: float) -> Setting:
    """Return the job of ``[evaluate]``'s defaults, which saves locally after every step."""
    synthesize(
        trace,
        Parameters(
            nodes=_NODES, days=days, interval_s=0.0, faults_per_node_day=faults_per_node_day
        ),
    )
    table = {
        "run": {"name": "bench"},
        "evaluate": {"local_checkpoint_s": 0.5, "local_interval_s": 10.0, "days": days},
    }
    return Setting(trace=str(trace), config=convert(table, Config, "bench"))


def _per_step(config: Config) -> Config:
    return replace(config, evaluate=replace(config.evaluate, recovery="per_step"))


def _events_per_s(setting: Setting, arm: Arm) -> float:
    """Play one run; return its events a second of CPU time."""
    simulate(setting, _BARE, 0)  # the scene is read from the trace once for all arms
    gc.collect()
    started = time.process_time()
    run = simulate(setting, arm, 0)
    took_s = time.process_time() - started
    if run.quarantined:
        raise RuntimeError(f"need policies that work, was {run.quarantined}")
    return run.model_events / took_s
