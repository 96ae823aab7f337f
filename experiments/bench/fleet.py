"""A made-up fleet: its hellos, its batches, and a config in which the policies look at it all."""

import time
from dataclasses import replace

import numpy as np

from torchloom_core.config.loading import convert
from torchloom_core.config.schema import Config
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.plugin import Floats
from torchloom_core.wire.messages import Hello, Telemetry

RUN = "bench"
ROUND = "round_total"
"""The metric with the round of batches of a sample."""

METRICS = (
    "step_time_s",
    ROUND,
    "loss",
    "grad_norm",
    "tokens_per_s",
    "gpu_temp_celsius",
    "gpu_power_watts",
    "gpu_util_ratio",
    "gpu_memory_bytes",
    "gpu_clock_hz",
    "hbm_temp_celsius",
    "gpu_ecc_corrected_total",
    "pcie_replay_total",
    "nvlink_errors_total",
    "nic_errors_total",
    "nic_rx_bytes_per_s",
    "nic_tx_bytes_per_s",
    "cpu_util_ratio",
    "cpu_temp_celsius",
    "load_average",
    "memory_bytes",
    "swap_bytes",
    "disk_read_bytes_per_s",
    "disk_write_bytes_per_s",
    "data_wait_s",
    "forward_s",
    "backward_s",
    "allreduce_s",
    "optimizer_s",
    "checkpoint_age_s",
)
INCARNATION = 1
_GROUP_SIZE = 8
_SPREAD = 0.02
_HIGH = 1 + 4.5 * _SPREAD
"""One sample in 300,000 lies higher: policies mostly look, and now and then propose."""


def config() -> Config:
    """Return a config with every built-in policy, which between them watch every metric."""
    watched = [metric for metric in METRICS if metric != ROUND]
    table = {
        "run": {"name": RUN},
        "policies": {
            "thresholds": {"rules": [{"metric": m, "level": _HIGH} for m in watched]},
            "straggler": {},
            "silence": {"metrics": list(METRICS)},
            "failure_forecast": {"predictor": "trend"},
        },
        "predictors": {"trend": {}},
    }
    return convert(table, Config, "bench")


def plugins(settings: Config) -> ActivePlugins:
    """Return the policies of ``settings``; forecasts are handed in, so no predictor runs."""
    return replace(activate(settings, discover(), "bench"), predictors={})


def names(workers: int) -> list[str]:
    """Return the workers' ids."""
    return [f"g{row // _GROUP_SIZE}-{row % _GROUP_SIZE}" for row in range(workers)]


def hello(worker: str) -> Hello:
    """Return the hello of ``worker``."""
    group, _, rank = worker.partition("-")
    return Hello(
        run=RUN,
        worker=worker,
        incarnation=INCARNATION,
        group=group,
        rank=int(rank),
        node=f"n{group}",
        rack=f"r{group[:2]}",
    )


def values(rng: np.random.Generator, samples: int, number: int) -> Floats:
    """Return ``(samples, metrics)`` of a healthy worker in round ``number``."""
    table = rng.normal(1.0, _SPREAD, (samples, len(METRICS)))
    table[:, METRICS.index(ROUND)] = number
    return table


def batch(worker: str, table: Floats) -> Telemetry:
    """Return ``worker``'s batch of ``(samples, metrics)``, the last sample taken now."""
    ts_ns = time.time_ns() + 50_000_000 * np.arange(1 - len(table), 1)
    return Telemetry(
        run=RUN,
        worker=worker,
        incarnation=INCARNATION,
        seq=int(table[0, METRICS.index(ROUND)]),
        state="training",
        step=1000,
        progress_age_s=0.05,
        metrics=METRICS,
        ts_ns=ts_ns.astype("<i8").tobytes(),
        values=table.astype("<f8").tobytes(),
    )
