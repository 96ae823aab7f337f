"""Metrics that follow from a step's amount of work and its time."""

import os

from torchloom_core.wire.limits import MAX_METRICS
from torchloom_threadlet.cleaning import warn_once

PEAK_FLOPS = "TORCHLOOM_PEAK_FLOPS"
_AMOUNTS = {"tokens": "tokens_per_s", "samples": "samples_per_s", "flops": "flops_per_s"}


def add_rates(row: dict[str, float], peak_flops: float | None, *, has_gpu: bool) -> None:
    """Add what a script does not report itself: ``tokens_per_s``, ``samples_per_s``, ``mfu``.

    ``mfu`` is the share of ``peak_flops``, in FLOP/s, that the model's own FLOPs (``flops``) use.
    """
    time_s = row["step_time_s"]
    for amount, rate in _AMOUNTS.items():
        if amount in row and time_s > 0 and len(row) < MAX_METRICS - 1:
            row.setdefault(rate, row[amount] / time_s)
    if "flops" not in row or "mfu" in row:
        return
    if peak_flops is None:
        if has_gpu:
            warn_once("metric mfu", f"not reported: the GPU's peak is unknown: set {PEAK_FLOPS}")
    elif time_s > 0 and len(row) < MAX_METRICS:
        row["mfu"] = row["flops"] / time_s / peak_flops


def configured_peak_flops() -> float | None:
    """Return the peak from the environment, in FLOP/s; None, with a warning, if it is no number."""
    text = os.environ.get(PEAK_FLOPS, "")
    try:
        peak = float(text or "nan")
    except ValueError:
        peak = 0.0
    if peak > 0 and peak < float("inf"):
        return peak
    if text:
        warn_once(PEAK_FLOPS, f"need FLOP/s, such as 989e12, was {text!r}: ignored")
    return None
