"""Forecasts a loss: the exponential that fits its curve best, extrapolated.

As AutoLRS (arXiv 2105.10762), which ranks learning rates by the forecast of their losses and not
by the present ones. It extrapolates at most as far as the observed curve is long. A curve that no
exponential explains, such as one of noise or spikes, is taken to stay at its end.
"""

import math
from collections.abc import Sequence

import torch

_FEWEST = 8
"""Steps of a curve that are used."""

_SPANS = 96
"""Time constants to try, from an eighth of the curve to twice its length."""

_EXPLAINED = 0.5
"""The least share of its variance that the exponential has to explain."""


def predict(losses: Sequence[float], ahead: int) -> float | None:
    """Return the loss ``ahead`` steps after the start, None for a curve that is too short.

    In ``a + b exp(-t / s)`` the ``s`` is searched on a grid, ``a`` and ``b`` are least squares.
    """
    if len(losses) < _FEWEST:
        return None
    seen = torch.tensor(losses, dtype=torch.float64)
    steps = torch.arange(len(losses), dtype=torch.float64)
    spans = torch.logspace(-3.0, 1.0, _SPANS, base=2.0, dtype=torch.float64) * len(losses)
    basis = torch.exp(-steps[None] / spans[:, None])
    bent = basis - basis.mean(1, keepdim=True)
    rise = (bent @ (seen - seen.mean())) / (bent * bent).sum(1)
    level = seen.mean() - rise * basis.mean(1)
    missed = (level[:, None] + rise[:, None] * basis - seen).square().sum(1)
    best = missed.argmin()
    if missed[best] > (1.0 - _EXPLAINED) * (seen - seen.mean()).square().sum():
        return float(seen[-math.ceil(len(losses) / 4) :].mean())
    return float(level[best] + rise[best] * torch.exp(-(ahead - 1) / spans[best]))
