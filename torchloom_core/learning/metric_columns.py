"""What some metrics tell of each worker; :mod:`torchloom_core.learning.features` asks.

A value that nothing came after is still so: what is told only when it changes is told by its last
value, with its age.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from torchloom_core.learning.window_sums import WindowSums
from torchloom_core.learning.words import in_words
from torchloom_core.plugin.arrays import Floats, samples_in
from torchloom_core.plugin.view import FleetView

_NOW = (
    "newest {}",
    "age of {} in s",
    "newest {} above the fleet's median",
)
_PAST = ("seconds since {} began to change", "seconds since {} last changed")
_AGO = "newest {} above that {} ago"
_RESTED_S = 3600.0
"""What changed sooner than this after its first value did not begin to: it is never at rest."""
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
"""Samples of so many workers and metrics stay in the processor's cache."""


def metric_names(metric: str, spans_s: Sequence[float], *, past: bool) -> list[str]:
    """Return what each column is, in words."""
    names = [text.format(metric) for text in (*_NOW, *(_PAST if past else ()))]
    for over in map(in_words, spans_s):
        over_span = (*_OVER_SPAN, _AGO) if past else _OVER_SPAN
        names += [text.format(metric, over, over) for text in over_span]
    return names


def metric_columns(
    view: FleetView, metrics: Sequence[str], spans_s: Sequence[float], *, past: bool
) -> list[Floats]:
    """Return blocks of columns, ``(workers, columns)`` each, metric by metric; NaN where unknown.

    Of small fleets several metrics are looked at together: there each look costs more than the
    sums.
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
    told = [newest, age_s, newest - _median_of_known(newest)]
    changed_s = None
    if past:
        changed_s = np.array([view.changed_s(metric) for metric in metrics])
        rested_s = np.array([view.rested_s(metric) for metric in metrics])
        moved_s = np.array([view.moved_s(metric) for metric in metrics])
        had_rested = rested_s >= max(_RESTED_S, *spans_s, 1.5 * view.tick_s)
        told += [np.where(had_rested, moved_s, np.nan), changed_s]
    if spans_s:
        windows = [view.window(metric, 2 * max(spans_s)).T for metric in metrics]
        window = np.stack(windows, axis=1)  # (samples, metrics, workers)
        told += _over_spans(window, view.tick_s, spans_s, newest, changed_s)
    columns: Floats = np.stack(told, axis=-1).swapaxes(0, 1)  # (workers, metrics, columns)
    return columns.reshape(len(view), len(told) * len(metrics))


def _median_of_known(values: Floats) -> Floats:
    """Return ``(metrics, 1)`` of ``(metrics, workers)``: the median of what is finite."""
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

    The window is cut where a span or the span before it begins; each piece is summed once, and
    the pieces are added up from the newest backwards.
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
            # What has not changed since then is known, whether or not anything came just before.
            ago = np.where(changed_s >= span_s, newest, pieces.last_before(span))
            yield newest - ago
