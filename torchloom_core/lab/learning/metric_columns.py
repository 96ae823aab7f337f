"""Features of metrics for each worker, for :mod:`torchloom_core.lab.learning.features`.

The last value stays valid until the next one, as some metrics are only sent when they change; its
age is a feature.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, samples_in
from torchloom_core.interface.view import FleetView
from torchloom_core.lab.learning.words import in_words

_NOW = (
    "newest {}",
    "age of {} in s",
    "newest {} above the fleet's median",
)
_PAST = ("seconds since {} began to change", "seconds since {} last changed")
_AGO = "newest {} above that {} ago"
_RESTED_S = 3600.0
"""A metric that changed sooner than this after its first value has no start of changes."""
_OVER_SPAN = (
    "mean of {} over {}",
    "standard deviation of {} over {}",
    "lowest {} over {}",
    "highest {} over {}",
    "slope of {} over {} in units a second",
    "share of scrapes without {} over {}",
    "mean of {} over {} above that of the {} before",
)
_AT_ONCE = 1 << 13
"""Samples per block, small enough for the processor's cache."""


def metric_names(metric: str, spans_s: Sequence[float], *, past: bool) -> list[str]:
    """Return the names of the columns."""
    names = [text.format(metric) for text in (*_NOW, *(_PAST if past else ()))]
    for over in map(in_words, spans_s):
        over_span = (*_OVER_SPAN, _AGO) if past else _OVER_SPAN
        names += [text.format(metric, over, over) for text in over_span]
    return names


def metric_columns(
    view: FleetView, metrics: Sequence[str], spans_s: Sequence[float], *, past: bool
) -> list[Floats]:
    """Return blocks of columns, ``(workers, columns)`` each, metric by metric; NaN where unknown.

    A block has several metrics if the fleet is small, where the overhead per block dominates.
    """
    samples = samples_in(2 * max(spans_s, default=view.tick_s), view.tick_s)
    step = max(1, _AT_ONCE // max(1, samples * len(view)))
    return [
        _columns(view, metrics[start : start + step], spans_s, past=past)
        for start in range(0, len(metrics), step)
    ]


def _columns(
    view: FleetView, metrics: Sequence[str], spans_s: Sequence[float], *, past: bool
) -> Floats:
    """Return ``(workers, metrics x columns)``."""
    newest = np.array([view.last_known(metric) for metric in metrics])  # (metrics, workers)
    age_s = np.array([view.age_s(metric) for metric in metrics])
    blocks = [newest, age_s, newest - _median_of_finite(newest)]
    changed_s = None
    if past:
        changed_s = np.array([view.changed_s(metric) for metric in metrics])
        rested_s = np.array([view.rested_s(metric) for metric in metrics])
        moved_s = np.array([view.moved_s(metric) for metric in metrics])
        had_rested = rested_s >= max(_RESTED_S, *spans_s, 1.5 * view.tick_s)
        blocks += [np.where(had_rested, moved_s, np.nan), changed_s]
    if spans_s:
        windows = [view.window(metric, 2 * max(spans_s)).T for metric in metrics]
        window = np.stack(windows, axis=1)  # (samples, metrics, workers)
        blocks += _over_spans(window, view.tick_s, spans_s, newest, changed_s)
    columns: Floats = np.stack(blocks, axis=-1).swapaxes(0, 1)  # (workers, metrics, columns)
    return columns.reshape(len(view), len(blocks) * len(metrics))


def _median_of_finite(values: Floats) -> Floats:
    """Return ``(metrics, 1)`` of ``(metrics, workers)``: the median of the finite values."""
    ranked = np.sort(np.where(np.isfinite(values), values, np.nan), axis=1)  # NaN is last
    count = np.count_nonzero(~np.isnan(ranked), axis=1)[:, None]
    if not ranked.shape[1]:
        return np.full((len(values), 1), np.nan)
    low, high = (np.take_along_axis(ranked, at, axis=1) for at in ((count - 1) // 2, count // 2))
    return 0.5 * low + 0.5 * high


def _over_spans(
    window: Floats,
    tick_s: float,
    spans_s: Sequence[float],
    newest: Floats,
    changed_s: Floats | None,
) -> Iterator[Floats]:
    """Yield ``(metrics, workers)`` of each span, from ``(samples, metrics, workers)``.

    The window is cut at the start of each span and of the span before it; each piece is summed
    once, and the pieces are accumulated from the newest backwards.
    """
    lengths = [samples_in(span_s, tick_s) for span_s in spans_s]
    samples = len(window)
    ends = sorted({length for n in lengths for length in (n, min(2 * n, samples))} | {samples})
    pieces = WindowSums.of(window, [samples - end for end in reversed(ends)], tick_s)
    row_of = {end: row for row, end in enumerate(reversed(ends))}
    for n, span_s in zip(lengths, spans_s, strict=True):
        span, both = row_of[n], row_of[min(2 * n, samples)]
        silent = pieces.n[span] == 0
        mean, spread, low, high, slope, missing = pieces.describe(span)
        yield np.where(silent, newest, mean)
        yield np.where(silent, 0.0 * newest, spread)
        yield np.where(silent, newest, low)
        yield np.where(silent, newest, high)
        yield np.where(silent, 0.0 * newest, slope)
        yield missing
        yield np.where(silent, newest, mean) - pieces.mean_between(both, span)
        if changed_s is not None:
            # A value that has not changed since then is known without a sample from then.
            ago = np.where(changed_s >= span_s, newest, pieces.last[span])
            yield newest - ago


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

    def mean_between(self, longer: int, span: int) -> Floats:
        """Return the mean of the longer span without the other, NaN without a sample."""
        n = self.n[longer] - self.n[span]
        mean: Floats = self.centre + (self.y[longer] - self.y[span]) / n
        return mean

    def describe(self, span: int) -> list[Floats]:
        """Return mean, standard deviation, lowest, highest, slope and share missing."""
        n, y, t = self.n[span], self.y[span], self.t[span]
        variance = self.yy[span] / n - (y / n) ** 2
        slope = (n * self.ty[span] - t * y) / (n * self.tt[span] - t * t)
        return [
            self.centre + y / n,
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
