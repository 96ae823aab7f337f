"""What one metric tells of each worker; :mod:`torchloom_core.learning.features` asks.

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


def metric_names(metric: str, spans_s: Sequence[float], *, past: bool) -> list[str]:
    """Return what each column is, in words."""
    names = [text.format(metric) for text in (*_NOW, *(_PAST if past else ()))]
    for over in map(in_words, spans_s):
        over_span = (*_OVER_SPAN, _AGO) if past else _OVER_SPAN
        names += [text.format(metric, over, over) for text in over_span]
    return names


def metric_columns(view: FleetView, metric: str, spans_s: Sequence[float], *, past: bool) -> Floats:
    """Return ``(workers, columns)``, NaN where unknown."""
    newest = view.last_known(metric)
    known = newest[np.isfinite(newest)]
    median = np.median(known) if len(known) else np.nan
    columns = [newest, view.age_s(metric), newest - median]
    changed_s = None
    if past:
        changed_s = view.changed_s(metric)
        had_rested = view.rested_s(metric) >= max(_RESTED_S, *spans_s, 1.5 * view.tick_s)
        columns += [np.where(had_rested, view.moved_s(metric), np.nan), changed_s]
    if spans_s:
        columns += _over_spans(view, metric, spans_s, newest, changed_s)
    return np.column_stack(columns)


def _over_spans(
    view: FleetView,
    metric: str,
    spans_s: Sequence[float],
    newest: Floats,
    changed_s: Floats | None,
) -> Iterator[Floats]:
    """Yield ``(workers,)`` of each span.

    The window is cut where a span or the span before it begins; each piece is summed once, and
    the pieces are added up from the newest backwards.
    """
    lengths = [samples_in(span_s, view.tick_s) for span_s in spans_s]
    window = view.window(metric, 2 * max(spans_s)).T  # (samples, workers): as it is stored
    samples = len(window)
    ends = sorted({length for n in lengths for length in (n, min(2 * n, samples))} | {samples})
    pieces = WindowSums.of(window, [samples - end for end in reversed(ends)], view.tick_s)
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
