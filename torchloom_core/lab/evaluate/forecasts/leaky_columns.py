"""Find telemetry columns that reveal the future of a component.

A column with the last date, the lifetime or the number of records of each component is constant
from its first or second row on. Apart from their time, no honest measurement relates a component's
first values, or their presence, to its end more than a horizon later.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.alarms import Bools
from torchloom_core.lab.evaluate.forecasts.failure_history import (
    FailureHistory,
    leak_by_group,
    leak_by_total,
)
from torchloom_core.lab.evaluate.forecasts.relations import (
    SEPARATED,
    auc_either_way,
    lifetime_correlation,
    lifetime_leak_given,
    separation_given,
)
from torchloom_core.lab.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers

LOOKS = (1, 2, 8, 32)
"""Numbers of first values of each component that are averaged."""
AGES = tuple(range(1, 7))
"""Ages at which the newest value of each component is checked, in eighths of the trace."""
_BEYOND_SHARE, _DATE_SHARE = 0.01, 0.99
"""Minimum shares of values that are later than their row, and that are dates at all."""
_AROUND_NS = 20 * 365 * 86_400 * SECOND_NS
_UNITS_NS: Mapping[str, float] = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


class TelemetrySummary(NamedTuple):
    """Telemetry of each component, summarized for the checks.

    Attributes
    ----------
    began_ns, ended_ns : (components,) float64
        Times of its first and last row; NaN without one.
    means, at_ns : (looks, components, metrics) float64
        Mean of the first values of each metric, by the numbers in ``LOOKS``, and the time of the
        last of them; NaN where there are fewer.
    later : (ages, components, metrics) float64
        Newest value of each metric at each of ``AGES``, NaN before the first.
    ages_ns : (ages,) float64
    beyond, dates, values : (metrics,) float64
        Numbers of dates later than their row, of dates, and of values.
    """

    began_ns: Floats
    ended_ns: Floats
    means: Floats
    at_ns: Floats
    later: Floats
    ages_ns: Floats
    beyond: Floats
    dates: Floats
    values: Floats


def leaky_columns(
    summary: TelemetrySummary,
    metrics: Sequence[str],
    history: FailureHistory,
    *,
    end_ns: int,
    horizon_ns: int,
) -> tuple[str, ...]:
    """Return a flag with the reason for each leaky metric.

    Parameters
    ----------
    summary : TelemetrySummary
        Summary of these metrics.
    history : FailureHistory
        History of the same components.
    end_ns : int
        End of the trace; a component whose last row is a horizon earlier has ended.
    """
    ended = summary.ended_ns < end_ns - horizon_ns
    found = [
        next(filter(None, _reasons(summary, column, history, ended, horizon_ns)), "")
        for column in range(len(metrics))
    ]
    unflagged = {
        metric: summary.means[0, ended, column]
        for column, metric in enumerate(metrics)
        if not found[column]
    }
    spans = summary.began_ns[ended], summary.ended_ns[ended]
    failed = ~np.isnan(history.failed_ns)
    first = {metric: summary.means[0, :, metrics.index(metric)] for metric in unflagged}
    for column, metric in enumerate(metrics):
        if not found[column]:
            found[column] = lifetime_leak_given(metric, unflagged, *spans)
    for column, metric in enumerate(metrics):
        if not found[column]:
            found[column] = separation_given(metric, first, failed)
    return tuple(
        f"{LEAKY_COLUMN}: {metric}: {why}"
        for metric, why in zip(metrics, found, strict=True)
        if why
    )


def summarize_telemetry(
    bundle: Bundle, metrics: Sequence[str], components: Sequence[str]
) -> TelemetrySummary:
    """Return the telemetry summary of some components."""
    shape = len(components), len(metrics)
    began: Floats = np.full(shape[0], np.nan)
    ended = began.copy()
    firsts = _Firsts(*shape)
    length_ns = bundle.manifest.end_ns - bundle.manifest.start_ns
    ages_ns: Floats = np.array(AGES) / 8 * length_ns
    later: Floats = np.full((len(ages_ns), *shape), np.nan)
    of_look = later.reshape(len(ages_ns), -1)
    beyond, dates, values = np.zeros((3, shape[1]))
    span_ns = bundle.manifest.start_ns - _AROUND_NS, bundle.manifest.end_ns + _AROUND_NS
    for table in bundle.telemetry(metrics=metrics):
        row = codes(table["component"], components)
        valid = numbers(table["valid"]) & (row >= 0)
        row, column = row[valid], codes(table["metric"], metrics)[valid]
        at_ns, value = numbers(table["t_event"])[valid], numbers(table["value"])[valid]
        first, last = (_by(reduce, row, at_ns, shape[0]) for reduce in (np.fmin, np.fmax))
        began, ended = np.fmin(began, first), np.fmax(ended, last)
        cell = row * shape[1] + column
        firsts.add(cell, at_ns, value)
        finite = np.isfinite(value)
        newest = _newest(cell, finite, of_look.shape[1])
        for look, age_ns in enumerate(ages_ns):
            until_ns = began + age_ns
            early = newest
            if (last > until_ns).any():  # otherwise all of these rows are early enough
                if not (first <= until_ns).any():
                    continue
                early = _newest(cell, finite & (at_ns <= until_ns[row]), of_look.shape[1])
            of_look[look][cell[early]] = value[early]
        is_date, is_beyond = _dates(value, at_ns, span_ns)
        beyond += np.bincount(column[is_beyond], minlength=shape[1])
        dates += np.bincount(column[is_date], minlength=shape[1])
        values += np.bincount(column, minlength=shape[1])
    return TelemetrySummary(
        began, ended, firsts.means, firsts.at_ns, later, ages_ns, beyond, dates, values
    )


class _Firsts:
    """Means of the first values of each metric of each component, accumulated in one pass."""

    def __init__(self, components: int, metrics: int) -> None:
        self._seen = np.zeros(components * metrics, dtype=np.int64)
        self._total = np.zeros(components * metrics)
        self.means: Floats = np.full((len(LOOKS), components, metrics), np.nan)
        self.at_ns = self.means.copy()

    def add(self, cell: Ints, at_ns: Ints, value: Floats) -> None:
        """Add values in order of arrival, each with its cell of component and metric."""
        early = np.flatnonzero((self._seen[cell] < LOOKS[-1]) & np.isfinite(value))
        early = early[np.argsort(cell[early], kind="stable")]
        cell, at_ns, value = cell[early], at_ns[early], value[early]
        own, start, count = np.unique(cell, return_index=True, return_counts=True)
        number = self._seen[cell] + np.arange(len(cell)) - np.repeat(start, count)
        for look, (before, last) in enumerate(zip((0, *LOOKS), LOOKS, strict=False)):
            new = (number >= before) & (number < last)
            with np.errstate(over="ignore"):
                np.add.at(self._total, cell[new], value[new])
            done = number == last - 1
            self.means[look].flat[cell[done]] = self._total[cell[done]] / last
            self.at_ns[look].flat[cell[done]] = at_ns[done]
        self._seen[own] += count


def _newest(cell: Ints, valid: Bools, cells: int) -> Ints:
    """Return the last valid row of each cell that has one."""
    rows = np.flatnonzero(valid)
    last = np.full(cells, -1)
    last[cell[rows]] = rows
    return last[last >= 0]


def _by(reduce: np.ufunc, row: Ints, at_ns: Ints, rows: int) -> Floats:
    """Return the earliest or latest time per component, NaN without one."""
    found: Floats = np.full(rows, np.nan)
    reduce.at(found, row, at_ns.astype(np.float64))
    return found


def _dates(value: Floats, at_ns: Ints, span_ns: tuple[int, int]) -> tuple[Bools, Bools]:
    """Return which values are dates near the time of the trace, and which are after their row."""
    is_date: Bools = np.zeros(len(value), dtype=np.bool_)
    is_beyond = is_date.copy()
    highest = float(np.fmax.reduce(value, initial=-np.inf))
    for unit_ns in _UNITS_NS.values():
        if highest * unit_ns < float(span_ns[0]):  # as numpy compares below
            continue
        with np.errstate(over="ignore"):
            moment_ns = value * unit_ns
        near = (moment_ns >= span_ns[0]) & (moment_ns <= span_ns[1])
        is_date |= near
        is_beyond |= near & (moment_ns > at_ns + 3600 * SECOND_NS)
    return is_date, is_beyond


def _reasons(
    summary: TelemetrySummary, column: int, history: FailureHistory, ended: Bools, horizon_ns: int
) -> Iterator[str]:
    """Yield the reasons why a column is leaky, "" where a check passes."""
    values = summary.values[column]
    if summary.dates[column] > _DATE_SHARE * values:
        share = summary.beyond[column] / values
        if share >= _BEYOND_SHARE:
            yield f"{share:.0%} of its values are dates later than their row"
    failed = ~np.isnan(history.failed_ns)
    last_ns = np.fmin(history.failed_ns, summary.ended_ns) - horizon_ns
    for look, count in enumerate(LOOKS):
        mean, at_ns = summary.means[look, :, column], summary.at_ns[look, :, column]
        # Near its end a component may show it honestly, except in its very first value.
        far = ~np.isnan(mean) & ((at_ns < summary.ended_ns - horizon_ns) | (count == 1))
        came_ns = summary.began_ns if count == 1 else at_ns
        subject, s = ("its first value", "s") if count == 1 else (f"its first {count} values", "")
        checked = far & ended
        if correlation := lifetime_correlation(
            mean[checked], came_ns[checked], summary.ended_ns[checked]
        ):
            yield (
                f"{subject} predict{s} the lifetime of {checked.sum()} components, rank "
                f"correlation {correlation:.2f}"
            )
        fails = ~np.isnan(mean) & failed & ((at_ns < last_ns) | (count == 1))
        stays = ~np.isnan(mean) & ~failed
        area = auc_either_way(mean[fails], mean[stays])
        if area >= SEPARATED:
            yield (
                f"{subject} separate{s} the {fails.sum()} components that failed at any time from "
                f"the others, ROC AUC {area:.3f}"
            )
    yield from _later_reasons(summary, column, history, ended, horizon_ns)
    first = summary.means[0, :, column]
    some = np.flatnonzero(~np.isnan(first))
    yield leak_by_total(first, history)
    yield leak_by_group(first[some].tolist(), FailureHistory(*(of[some] for of in history)))
    until_ns = np.where(failed, last_ns, np.inf)
    there, seen = summary.at_ns[0, :, column] < until_ns, ~(summary.began_ns >= until_ns)
    area = auc_either_way(there[seen & failed].astype(float), there[seen & ~failed].astype(float))
    if area >= SEPARATED:
        yield (
            f"the presence of a value separates the {(seen & failed).sum()} components that failed "
            f"at any time from the others, ROC AUC {area:.3f}"
        )


def _later_reasons(
    summary: TelemetrySummary, column: int, history: FailureHistory, ended: Bools, horizon_ns: int
) -> Iterator[str]:
    """Yield the reasons from values at ``AGES``, for ends more than a horizon later."""
    failed = ~np.isnan(history.failed_ns)
    for eighths, age_ns, of in zip(AGES, summary.ages_ns, summary.later, strict=True):
        value, far_ns = of[:, column], summary.began_ns + age_ns + horizon_ns
        valid = ~np.isnan(value) & (summary.ended_ns > far_ns)
        subject = f"its values {eighths}/8 of the trace after its first"
        checked = valid & ended
        spans = summary.began_ns[checked], summary.ended_ns[checked]
        if correlation := lifetime_correlation(value[checked], *spans):
            yield (
                f"{subject} predict the lifetime of {checked.sum()} components, rank correlation "
                f"{correlation:.2f}"
            )
        fails = valid & (history.failed_ns > far_ns)
        area = auc_either_way(value[fails], value[valid & ~failed])
        if area >= SEPARATED:
            yield (
                f"{subject} separate the {fails.sum()} components that failed after that from the "
                f"others, ROC AUC {area:.3f}"
            )
