"""Small traces for backtests, and their settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tests.evaluate.traces import writing
from torchloom_core.config.evaluation import Evaluate
from torchloom_core.config.schema import Config, Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.goodput.episode import Episode, draw
from torchloom_core.lab.evaluate.goodput.run import Setting
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component, Event

START_NS = 1_700_000_000 * SECOND_NS
HOUR_NS = 3600 * SECOND_NS
DAY_NS = 24 * HOUR_NS
DAYS = 6
NODES = tuple(f"n{number}" for number in range(8))

JOB = Evaluate(groups=4, standbys=1, spares=2, days=3.0, tick_s=600.0)
COSTS = Costs(detect_s=60.0, restart_s=240.0, migrate_s=10.0, checkpoint_s=20.0)
CONFIG = Config(evaluate=JOB, costs=COSTS)
TORCHLOOM_TOML = """
[evaluate]
groups = 4
spares = 2
days = 0.5

[predictors.fault_history]
every_s = 3600.0
horizon_s = 21600.0

[policies.failure_forecast]
accept_unskilled = true
"""
"""What a folder in which the command runs has as its torchloom.toml."""


def event(number: int, hours: float, node: str, **fields: Any) -> Event:
    at_ns = START_NS + round(hours * HOUR_NS)
    defaults = {
        "id": f"e{number}",
        "t_event": at_ns,
        "t_avail": at_ns,
        "component": node,
        "kind": "gpu",
        "follows": "component",
        "t_resolved": at_ns + 5 * HOUR_NS,
    }
    return Event(**{**defaults, **fields})


def some_events(seed: int = 0, count: int = 30) -> list[Event]:
    """Failures on all nodes, the first two of which have most of them."""
    rng = np.random.default_rng(seed)
    hours = np.sort(rng.uniform(0, 24 * DAYS, count))
    share = np.array([6.0, 4.0] + [1.0] * (len(NODES) - 2))
    nodes = rng.choice(len(NODES), count, p=share / share.sum())
    return [
        event(number, hour, NODES[node])
        for number, (hour, node) in enumerate(zip(hours, nodes, strict=True))
    ]


def write(
    path: Path,
    events: Sequence[Event],
    *,
    metrics: Sequence[str] = (),
    load_dependent: Sequence[str] = (),
) -> Bundle:
    """Write a bundle; its telemetry is random numbers every 10 minutes."""
    with writing(path, START_NS, START_NS + DAYS * DAY_NS, load_dependent=load_dependent) as writer:
        for node in NODES:
            writer.add(Component(id=node, kind="node", gpus=8))
        for one in events:
            writer.add(one)
        if metrics:
            writer.telemetry(_telemetry(metrics))
    return Bundle.open(path)


def _telemetry(metrics: Sequence[str]) -> pa.Table:
    rng = np.random.default_rng(5)
    times = np.arange(START_NS, START_NS + DAYS * DAY_NS, 600 * SECOND_NS)
    each = len(NODES) * len(metrics)
    stamps = np.repeat(times, each)
    return pa.table(
        {
            "t_event": stamps,
            "t_avail": stamps,
            "component": [node for _ in times for node in NODES for _ in metrics],
            "metric": [metric for _ in times for _ in NODES for metric in metrics],
            "value": rng.normal(50.0, 10.0, len(stamps)),
            "valid": np.ones(len(stamps), dtype=bool),
        }
    )


def scene_of(bundle: Bundle, *, evaluate: Evaluate = JOB, seed: int = 0) -> Episode:
    return draw(bundle, evaluate, seed, unknown="component")


def setting_of(bundle: Bundle, config: Config = CONFIG, **fields: Any) -> Setting:
    return Setting(trace=str(bundle.path), config=config, horizon_s=6 * 3600.0, **fields)


def policies() -> dict[str, type]:
    return {i.name: i.cls for i in installed() if i.kind == "policy" and i.cls is not None}


def candidate(**fields: Any) -> Arm:
    """Act on the fault count, which forecasts every hour, for six hours."""
    arm = Arm(
        name="by_history",
        kind="candidate",
        what="failure_forecast, with forecasts of fault_history",
        needs_forecast=True,
        policies={"failure_forecast": {"predictor": "fault_history", "min_probability": 0.0}},
        predictors={
            "fault_history": {
                "every_s": 3600.0,
                "horizon_s": 21_600.0,
                "half_life_s": 86_400.0,
                "prior_faults_per_day": 0.2,
            }
        },
    )
    return msgspec.structs.replace(arm, **fields)
