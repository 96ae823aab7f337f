"""Find columns that know the future of a component, of which none alone tells the failures apart.

A column with the last date of each component, how long it will be there, or how many records it
will have is the same from the first row on, or from the second. What a component's first values
have to do with how it ends more than a horizon later, beside when they came, no honest measurement
knows; nor whether there is such a column at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import Bools
from torchloom_core.evaluate.forecasts.fates import Fates, told_by_group, told_by_total
from torchloom_core.evaluate.forecasts.relations import (
    APART,
    apart,
    apart_beside,
    known_beside,
    related,
)
from torchloom_core.learning.forecast_score import LEAKY_COLUMN
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.telemetry import codes, numbers

LOOKS = (1, 2, 8, 32)
"""How many values of each component are looked at together, from its first on."""
AGES = tuple(range(1, 7))
"""How long after its first row the newest value of each is looked at, in eighths of the trace."""
_BEYOND_SHARE, _DATE_SHARE = 0.01, 0.99
"""The share of a column's values that are dates at all, and that are beyond their moment."""
_AROUND_NS = 20 * 365 * 86_400 * SECOND_NS
_UNITS_NS: Mapping[str, float] = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


class Lives(NamedTuple):
    """What is to be seen of each component, from its first row to its last.

    Attributes
    ----------
    began_ns, ended_ns : (components,) float64
        Its first row and its last; NaN without one.
    means, at_ns : (looks, components, metrics) float64
        The mean of the first values of each metric, as many as ``LOOKS`` says, and when the last of
        them came; NaN where there are fewer.
    later : (ages, components, metrics) float64
        The newest value of each metric at each of ``AGES``, NaN before the first.
    ages_ns : (ages,) float64
    beyond, dates, values : (metrics,) float64
        How many values there are, how many of them are dates, and how many dates beyond their
        moment.
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
    lives: Lives, metrics: Sequence[str], fates: Fates, *, end_ns: int, horizon_ns: int
) -> tuple[str, ...]:
    """Return a flag for each metric that knows the future of components, with why.

    Parameters
    ----------
    lives : Lives
        Of these metrics.
    fates : Fates
        Of the same components.
    end_ns : int
        The end of the trace: a component whose last row is a horizon before has ended.
    """
    ended = lives.ended_ns < end_ns - horizon_ns
    found = [
        next(filter(None, _whys(lives, column, fates, ended, horizon_ns)), "")
        for column in range(len(metrics))
    ]
    honest = {
        metric: lives.means[0, ended, column]
        for column, metric in enumerate(metrics)
        if not found[column]
    }
    spans = lives.began_ns[ended], lives.ended_ns[ended]
    failed = ~np.isnan(fates.failed_ns)
    first = {metric: lives.means[0, :, metrics.index(metric)] for metric in honest}
    for column, metric in enumerate(metrics):
        if not found[column]:
            found[column] = known_beside(metric, honest, *spans)
    for column, metric in enumerate(metrics):
        if not found[column]:
            found[column] = apart_beside(metric, first, failed)
    return tuple(
        f"{LEAKY_COLUMN}: {metric}: {why}"
        for metric, why in zip(metrics, found, strict=True)
        if why
    )


def lives_of(bundle: Bundle, metrics: Sequence[str], components: Sequence[str]) -> Lives:
    """Return what the telemetry shows of some components."""
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
        known = numbers(table["valid"]) & (row >= 0)
        row, column = row[known], codes(table["metric"], metrics)[known]
        at_ns, value = numbers(table["t_event"])[known], numbers(table["value"])[known]
        first, last = (_by(reduce, row, at_ns, shape[0]) for reduce in (np.fmin, np.fmax))
        began, ended = np.fmin(began, first), np.fmax(ended, last)
        cell = row * shape[1] + column
        firsts.add(cell, at_ns, value)
        finite = np.isfinite(value)
        newest = _newest(cell, finite, of_look.shape[1])
        for look, age_ns in enumerate(ages_ns):
            until_ns = began + age_ns
            early = newest
            if (last > until_ns).any():  # or else all of these rows are early enough
                if not (first <= until_ns).any():
                    continue
                early = _newest(cell, finite & (at_ns <= until_ns[row]), of_look.shape[1])
            of_look[look][cell[early]] = value[early]
        is_date, is_beyond = _dates(value, at_ns, span_ns)
        beyond += np.bincount(column[is_beyond], minlength=shape[1])
        dates += np.bincount(column[is_date], minlength=shape[1])
        values += np.bincount(column, minlength=shape[1])
    return Lives(began, ended, firsts.means, firsts.at_ns, later, ages_ns, beyond, dates, values)


class _Firsts:
    """The means of the first values of each metric of each component, as they come."""

    def __init__(self, components: int, metrics: int) -> None:
        self._seen = np.zeros(components * metrics, dtype=np.int64)
        self._total = np.zeros(components * metrics)
        self.means: Floats = np.full((len(LOOKS), components, metrics), np.nan)
        self.at_ns = self.means.copy()

    def add(self, cell: Ints, at_ns: Ints, value: Floats) -> None:
        """Take some values, in the order they came, each of a component's metric."""
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


def _newest(cell: Ints, known: Bools, cells: int) -> Ints:
    """Return the last known row of each cell that has one."""
    rows = np.flatnonzero(known)
    last = np.full(cells, -1)
    last[cell[rows]] = rows
    return last[last >= 0]


def _by(reduce: np.ufunc, row: Ints, at_ns: Ints, rows: int) -> Floats:
    """Return the least or the most of some moments by component, NaN where there is none."""
    found: Floats = np.full(rows, np.nan)
    reduce.at(found, row, at_ns.astype(np.float64))
    return found


def _dates(value: Floats, at_ns: Ints, span_ns: tuple[int, int]) -> tuple[Bools, Bools]:
    """Return which values are dates about the time of the trace, and which lie beyond theirs."""
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


def _whys(lives: Lives, column: int, fates: Fates, ended: Bools, horizon_ns: int) -> Iterator[str]:
    """Yield what a column knows that it cannot know."""
    values = lives.values[column]
    if lives.dates[column] > _DATE_SHARE * values:
        share = lives.beyond[column] / values
        if share >= _BEYOND_SHARE:
            yield f"{share:.0%} of its values are dates beyond their moment"
    failed = ~np.isnan(fates.failed_ns)
    last_ns = np.fmin(fates.failed_ns, lives.ended_ns) - horizon_ns
    for look, count in enumerate(LOOKS):
        mean, at_ns = lives.means[look, :, column], lives.at_ns[look, :, column]
        # Whose end is near may tell it honestly, unless that is the first that is heard of it.
        far = ~np.isnan(mean) & ((at_ns < lives.ended_ns - horizon_ns) | (count == 1))
        came_ns = lives.began_ns if count == 1 else at_ns
        tells = "its first value tells" if count == 1 else f"its first {count} values tell"
        asked = far & ended
        if correlation := related(mean[asked], came_ns[asked], lives.ended_ns[asked]):
            yield (
                f"{tells} how long {asked.sum()} components that ended were there, rank "
                f"correlation {correlation:.2f}"
            )
        fails = ~np.isnan(mean) & failed & ((at_ns < last_ns) | (count == 1))
        stays = ~np.isnan(mean) & ~failed
        area = apart(mean[fails], mean[stays])
        if area >= APART:
            yield (
                f"{tells} the {fails.sum()} components that failed at any time from the others, "
                f"area under the ROC curve {area:.3f}"
            )
    yield from _later_whys(lives, column, fates, ended, horizon_ns)
    first = lives.means[0, :, column]
    some = np.flatnonzero(~np.isnan(first))
    yield told_by_total(first, fates)
    yield told_by_group(first[some].tolist(), Fates(*(of[some] for of in fates)))
    asked_ns = np.where(failed, last_ns, np.inf)
    there, seen = lives.at_ns[0, :, column] < asked_ns, ~(lives.began_ns >= asked_ns)
    area = apart(there[seen & failed].astype(float), there[seen & ~failed].astype(float))
    if area >= APART:
        yield (
            f"whether there is one tells the {(seen & failed).sum()} components that failed at any "
            f"time from the others, area under the ROC curve {area:.3f}"
        )


def _later_whys(
    lives: Lives, column: int, fates: Fates, ended: Bools, horizon_ns: int
) -> Iterator[str]:
    """Yield what a column knows later in life of ends that are more than a horizon away."""
    failed = ~np.isnan(fates.failed_ns)
    for eighths, age_ns, of in zip(AGES, lives.ages_ns, lives.later, strict=True):
        value, far_ns = of[:, column], lives.began_ns + age_ns + horizon_ns
        known = ~np.isnan(value) & (lives.ended_ns > far_ns)
        tells = f"its values {eighths}/8 of the trace after its first tell"
        asked = known & ended
        spans = lives.began_ns[asked], lives.ended_ns[asked]
        if correlation := related(value[asked], *spans):
            yield (
                f"{tells} how long {asked.sum()} components that ended were there, rank "
                f"correlation {correlation:.2f}"
            )
        fails = known & (fates.failed_ns > far_ns)
        area = apart(value[fails], value[known & ~failed])
        if area >= APART:
            yield (
                f"{tells} the {fails.sum()} components that failed after that from the others, "
                f"area under the ROC curve {area:.3f}"
            )
