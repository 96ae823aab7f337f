"""Judges a change by its pairs, without an assumption on how their differences are distributed.

In a pair both arms have the same data and random numbers, so they differ only by the change.
The median of the differences is between the least and the largest of ``n`` of them with
probability ``1 - 2**(1 - n)``, and so on inwards: the interval of the sign test. A loss that
diverges, or is no number any more, counts as one pair, and no more.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from torchloom_core.wire.preview import FEWEST_PAIRS, Extrapolation, Judgement
from torchloom_threadlet.standby_tasks.progress import finite

_SURE = 0.9
"""The interval is the narrowest that contains the median with this probability."""

_FEWEST = 8
"""Steps of a curve that are used."""

_SPANS = 96
"""Time constants to try, from an eighth of the curve to twice its length."""

_EXPLAINED = 0.5
"""The least share of its variance that the exponential has to explain."""


class Pair(NamedTuple):
    """The losses of both arms, step by step; an arm ends where its loss is no number."""

    control: Sequence[float]
    change: Sequence[float]


def judge(pairs: Sequence[Pair], steps: int) -> Judgement:
    """Return the judgement of the change from the complete pairs.

    ``pairs``: at least one, each of ``steps`` steps.
    """
    over = math.ceil(steps / 4)
    ends = [(_end(pair.control, over), _end(pair.change, over)) for pair in pairs]
    differences = sorted(change - control for control, change in ends)
    inwards, confidence = _interval(len(differences))
    low, high = differences[inwards], differences[-1 - inwards]
    return Judgement(
        result=_verdict(len(pairs), low, high),
        pairs=len(pairs),
        for_change=sum(difference < 0 for difference in differences),
        over=over,
        difference=finite(statistics.median(differences)),
        low=finite(low),
        high=finite(high),
        confidence=confidence,
        alike=all(pair.control == pair.change for pair in pairs),
        diverged=sum(math.isinf(change) for _, change in ends),
        ahead=_ahead(pairs, steps),
    )


def _end(losses: Sequence[float], over: int) -> float:
    """Return the mean of the last losses, infinite if the last one is no number."""
    return statistics.fmean(losses[-over:]) if math.isfinite(losses[-1]) else math.inf


def _interval(pairs: int) -> tuple[int, float]:
    """Return how many differences may be left out at each end, and the resulting probability.

    Examples
    --------
    >>> _interval(5), _interval(9)
    ((0, 0.9375), (1, 0.9609375))
    """
    inwards, outside = 0, 2.0 / 2**pairs
    while True:
        more = outside + 2.0 * math.comb(pairs, inwards + 1) / 2**pairs
        if 1.0 - more < _SURE:
            return inwards, 1.0 - outside
        inwards, outside = inwards + 1, more


def _verdict(pairs: int, low: float, high: float) -> Literal["better", "worse", "same", "few"]:
    if low > 0 or high < 0:
        if pairs < FEWEST_PAIRS:
            return "few"
        return "worse" if low > 0 else "better"
    return "same"


def _ahead(pairs: Sequence[Pair], steps: int) -> Extrapolation | None:
    far = 2 * steps
    both = [
        _spread([predict(losses, far) for losses in arms if math.isfinite(losses[-1])])
        for arms in zip(*pairs, strict=True)
    ]
    control, change = both
    if control is None and change is None:
        return None
    return Extrapolation(steps=far, control=control, change=change)


def _spread(found: Sequence[float | None]) -> tuple[float, float, float] | None:
    numbers = [one for one in found if one is not None and math.isfinite(one)]
    return (min(numbers), statistics.median(numbers), max(numbers)) if numbers else None


def predict(losses: Sequence[float], ahead: int) -> float | None:
    """Return the loss ``ahead`` steps after the start, None for a curve that is too short.

    As AutoLRS (arXiv 2105.10762), which ranks learning rates by the forecast of their losses and
    not by the present ones: the exponential that fits the curve best, extrapolated at most as far
    as the curve is long. A curve that no exponential explains, such as one of noise or spikes, is
    taken to stay at its end. In ``a + b exp(-t / s)`` the ``s`` is searched on a grid, ``a`` and
    ``b`` are least squares.
    """
    if len(losses) < _FEWEST:
        return None
    seen = torch.tensor(losses, dtype=torch.float64, device="cpu")
    steps = torch.arange(len(losses), dtype=torch.float64, device="cpu")
    shares = torch.logspace(-3.0, 1.0, _SPANS, base=2.0, dtype=torch.float64, device="cpu")
    spans = shares * len(losses)
    basis = torch.exp(-steps[None] / spans[:, None])
    bent = basis - basis.mean(1, keepdim=True)
    rise = (bent @ (seen - seen.mean())) / (bent * bent).sum(1)
    level = seen.mean() - rise * basis.mean(1)
    missed = (level[:, None] + rise[:, None] * basis - seen).square().sum(1)
    best = missed.argmin()
    if missed[best] > (1.0 - _EXPLAINED) * (seen - seen.mean()).square().sum():
        return float(seen[-math.ceil(len(losses) / 4) :].mean())
    return float(level[best] + rise[best] * torch.exp(-(ahead - 1) / spans[best]))
