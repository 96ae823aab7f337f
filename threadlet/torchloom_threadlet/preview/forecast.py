"""Where a loss goes from here: the exponential that fits its curve best, drawn on.

The way of AutoLRS (arXiv 2105.10762), which ranks learning rates by where their losses lead and
not by where they are. It is drawn on only as far again as it was seen. A curve that no exponential
explains, as one of noise or of spikes alone, is said to stay where it is at its end.
"""

import math
from collections.abc import Sequence

import torch

_FEWEST = 8
"""Steps of which a curve is seen."""

_SPANS = 96
"""Time constants that are tried, from an eighth of the curve to twice its length."""

_EXPLAINED = 0.5
"""Share of its variance that the exponential has to explain, or it is not drawn on."""


def predict(losses: Sequence[float], ahead: int) -> float | None:
    """Return the loss ``ahead`` steps after the beginning, None of a curve that is too short.

    Of ``a + b exp(-t / s)`` the ``s`` is tried on a grid, ``a`` and ``b`` are least squares.
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
