"""The metrics of a simulated step, under the names that ranks with torchft report."""

import math

import numpy as np

from torchloom_core.interface.arrays import Floats
from torchloom_core.lab.simulate.allreduce_run import Step, Workload

METRICS = (
    "bucket_0_bytes",
    "bucket_0_compress_s",
    "bucket_0_wire_s",
    "compress_s",
    "compute_s",
    "gradient_bytes",
    "loss",
    "overlap_s",
    "reductions",
    "sent_bytes",
    "step_time_s",
    "wait_s",
    "wire_s",
)
"""The columns of :func:`measured_of`."""

_FLOOR, _FALL, _STEPS = 1.5, 3.0, 100.0


def measured_of(step: Step, load: Workload) -> Floats:
    """Return ``(ranks, metrics)`` of a step.

    The first rank to finish waits in the collective for the others, so the least ``wire_s`` is
    nearest to the transfer time.
    """
    sent_bytes = load.modes[step.mode].sent_bytes
    took_s = step.end_s - step.begin_s
    wire_s = step.hidden_s + step.exposed_s + (step.own_s.max() - step.own_s)
    columns: dict[str, Floats | float] = {
        "bucket_0_bytes": sent_bytes,
        "bucket_0_compress_s": step.compress_s,
        "bucket_0_wire_s": wire_s,
        "compress_s": step.compress_s,
        "compute_s": step.own_s,
        "gradient_bytes": load.gradient_bytes,
        "loss": _loss(step.progress) * step.luck,
        "overlap_s": step.hidden_s,
        "reductions": 1.0,
        "sent_bytes": sent_bytes,
        "step_time_s": took_s,
        "wait_s": took_s - step.own_s,
        "wire_s": wire_s,
    }
    return np.column_stack(
        [np.broadcast_to(columns[metric], len(step.own_s)) for metric in METRICS]
    )


def _loss(progress: float) -> float:
    """Return a synthetic loss that falls with progress, for a guard to watch."""
    return _FLOOR + _FALL / math.sqrt(1.0 + progress / _STEPS)
