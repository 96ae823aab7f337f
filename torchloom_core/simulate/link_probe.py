"""What a probe of a simulated link measures, and how long it takes: docs/telemetry.md."""

import numpy as np

from torchloom_core.wire.links import Measured

_BURSTS = 5
_MEASURES_S = 2.0
"""What has not come by then is not waited for."""


def probe_link(
    bytes_per_s: float,
    latency_s: float,
    probe_bytes: int,
    noise: float,
    random: np.random.Generator,
) -> tuple[Measured, float]:
    """Return what is measured, and the seconds that it takes.

    Parameters
    ----------
    bytes_per_s, latency_s : float
        Of the link, while it is probed.
    noise : float
        By how much bursts differ, and latencies, relative: lognormal, with mean 1.
    """
    burst_s = probe_bytes / _BURSTS / bytes_per_s
    begun = min(_BURSTS, 1 + int(_MEASURES_S / burst_s))
    drawn = np.exp(noise * random.standard_normal(1 + _BURSTS) - noise**2 / 2)
    of_latency, first, *others = drawn.tolist()
    timed = others[: begun - 1] or [first]  # unless it is the only one, it but opens the window
    middle = float(np.median(timed))
    measured = Measured(
        bytes_per_s=bytes_per_s * middle,
        latency_s=latency_s * of_latency,
        spread=float(np.std(timed)) / middle if len(timed) > 1 else None,
    )
    return measured, min(_BURSTS * burst_s, _MEASURES_S)
