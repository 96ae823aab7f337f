"""Simulate a probe of a link as in docs/telemetry.md: its measurement and duration."""

import numpy as np

from torchloom_core.wire.links import Measured

_BURSTS = 5
_MEASURES_S = 2.0
"""Maximum duration of a measurement, seconds."""


def probe_link(
    bytes_per_s: float,
    latency_s: float,
    probe_bytes: int,
    noise: float,
    random: np.random.Generator,
) -> tuple[Measured, float]:
    """Return the measurement, and its duration in seconds.

    ``noise`` is the relative variation of bursts and latencies: lognormal, with mean 1.
    """
    burst_s = probe_bytes / _BURSTS / bytes_per_s
    begun = min(_BURSTS, 1 + int(_MEASURES_S / burst_s))
    drawn = np.exp(noise * random.standard_normal(1 + _BURSTS) - noise**2 / 2)
    of_latency, first, *others = drawn.tolist()
    timed = others[: begun - 1] or [first]  # the first only opens the window
    middle = float(np.median(timed))
    measured = Measured(
        bytes_per_s=bytes_per_s * middle,
        latency_s=latency_s * of_latency,
        spread=float(np.std(timed)) / middle if len(timed) > 1 else None,
    )
    return measured, min(_BURSTS * burst_s, _MEASURES_S)
