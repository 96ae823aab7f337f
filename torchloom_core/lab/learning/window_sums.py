"""Mean, spread, slope and gaps of several spans of windows at once, for all workers.

The base of the features of a view.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats


@dataclass(frozen=True)
class WindowSums:
    """Sums over spans that all end now: ``(spans, metrics, workers)``, longest span first.

    Values are relative to each worker's own mean, so a large counter keeps its precision;
    ``scrapes`` are the ticks with a sample of a metric from any worker.
    """

    centre: Floats
    scrapes: Floats
    n: Floats
    y: Floats
    yy: Floats
    t: Floats
    tt: Floats
    ty: Floats
    low: Floats
    high: Floats
    last: Floats

    @classmethod
    def of(cls, window: Floats, starts: Sequence[int], tick_s: float) -> "WindowSums":
        """Sum ``(samples, metrics, workers)`` from each start, oldest first, to the end."""
        seen = np.isfinite(window)
        n = seen.sum(axis=0)
        centre = np.where(seen, window, 0.0).sum(axis=0) / np.maximum(n, 1)
        y = np.where(seen, window - centre, 0.0)
        t = np.where(seen, np.arange(1 - len(window), 1)[:, None, None] * tick_s, 0.0)

        def total(terms: Floats) -> Floats:
            return _from_the_end(np.add, terms, starts)

        return cls(
            centre=centre,
            scrapes=total(seen.any(axis=2, keepdims=True).astype(float)),
            n=total(seen.astype(float)),
            y=total(y),
            yy=total(y * y),
            t=total(t),
            tt=total(t * t),
            ty=total(t * y),
            low=_from_the_end(np.minimum, np.where(seen, window, np.inf), starts),
            high=_from_the_end(np.maximum, np.where(seen, window, -np.inf), starts),
            last=_last_before(window, seen, starts),
        )

    def mean(self, span: int) -> Floats:
        """Return the span's mean, NaN without a sample."""
        mean: Floats = self.centre + self.y[span] / self.n[span]
        return mean

    def mean_between(self, longer: int, span: int) -> Floats:
        """Return the mean of the longer span without the other, NaN without a sample."""
        n = self.n[longer] - self.n[span]
        mean: Floats = self.centre + (self.y[longer] - self.y[span]) / n
        return mean

    def last_before(self, span: int) -> Floats:
        """Return the last value before the span, NaN without a sample there."""
        last: Floats = self.last[span]
        return last

    def describe(self, span: int) -> list[Floats]:
        """Return mean, standard deviation, lowest, highest, slope and share missing."""
        n, y, t = self.n[span], self.y[span], self.t[span]
        variance = self.yy[span] / n - (y / n) ** 2
        slope = (n * self.ty[span] - t * y) / (n * self.tt[span] - t * t)
        return [
            self.mean(span),
            np.sqrt(np.maximum(variance, 0.0)),
            self.low[span],
            self.high[span],
            np.where(n >= 2, slope, np.nan),
            1.0 - n / self.scrapes[span],
        ]


def _last_before(window: Floats, seen: NDArray[np.bool_], starts: Sequence[int]) -> Floats:
    """Return ``(starts, metrics, workers)``: the last value seen before each start."""
    values = window.reshape(len(window), -1)
    last: Floats = np.full((len(starts), values.shape[1]), np.nan)
    at = np.where(seen, np.arange(len(window), dtype=np.int32)[:, None, None], -1)
    at = at.reshape(values.shape)
    for row in range(1, len(starts)):
        last[row] = last[row - 1]
        newest = at[starts[row - 1] : starts[row]].max(axis=0)
        known = np.flatnonzero(newest >= 0)
        last[row, known] = values[newest[known], known]
    return last.reshape(len(starts), *window.shape[1:])


def _from_the_end(add: np.ufunc, terms: Floats, starts: Sequence[int]) -> Floats:
    """Return ``(starts, metrics, workers)``: the terms from each start to the end."""
    taken: Floats = np.empty((len(starts), *terms.shape[1:]))
    ends = [*starts[1:], len(terms)]
    for row in reversed(range(len(starts))):  # several times as fast as reduceat
        piece = add.reduce(terms[starts[row] : ends[row]], axis=0)
        taken[row] = piece if row == len(starts) - 1 else add(piece, taken[row + 1])
    return taken
