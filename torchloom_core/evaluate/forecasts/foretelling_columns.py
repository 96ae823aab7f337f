"""Find columns that know the future of a component, of which none alone tells the failures apart.

A column with the last date of each component, how long it will be there, or how many records it
will have is the same from the first row on. What a component's first value has to do with how it
ends, beside when it began, no honest measurement knows.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import Bools
from torchloom_core.learning.forecast_score import FORETELLING
from torchloom_core.plugin.arrays import Floats, Ints
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.telemetry import codes

FEWEST = 20
"""Components that ended, or that failed, of which a relation is told."""
RELATED = 0.8
"""A partial rank correlation from which on it is none by chance, nor one of age or model."""
RELATED_BESIDE = 0.9
"""The same beside another column, of which there are many."""
APART = 0.95
"""How often the first value of one that fails is beyond that of one that does not."""
_MOST = 1000
"""Components of which a relation beside another column is told: pairs of columns are many."""
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
    first : (components, metrics) float64
        The first value of each metric, NaN without one.
    beyond, dates, values : (metrics,) float64
        How many values there are, how many of them are dates, and how many dates beyond their
        moment.
    """

    began_ns: Floats
    ended_ns: Floats
    first: Floats
    beyond: Floats
    dates: Floats
    values: Floats


def foretelling_columns(
    bundle: Bundle, metrics: Sequence[str], failed: Bools, *, horizon_ns: int
) -> tuple[str, ...]:
    """Return a flag for each metric that knows the future of components, with why.

    Parameters
    ----------
    failed : (components,) bool
        Which of ``bundle.measured`` have failed.
    horizon_ns : int
        A component whose last row is so long before the end of the trace has ended.
    """
    if not metrics:
        return ()
    lives, ended_before_ns = lives_of(bundle, metrics), bundle.manifest.end_ns - horizon_ns
    found = {column: _why(lives, column, failed, ended_before_ns) for column in range(len(metrics))}
    ended = lives.ended_ns < ended_before_ns
    honest = {metrics[column]: lives.first[ended, column] for column in found if not found[column]}
    spans = lives.began_ns[ended], lives.ended_ns[ended]
    return tuple(
        f"{FORETELLING}: {metric}: {why}"
        for column, metric in enumerate(metrics)
        if (why := found[column] or known_beside(metric, honest, *spans))
    )


def lives_of(bundle: Bundle, metrics: Sequence[str]) -> Lives:
    """Return what the telemetry shows of each of ``bundle.measured``."""
    shape = len(bundle.measured), len(metrics)
    began: Floats = np.full(shape[0], np.nan)
    ended, first = began.copy(), np.full(shape, np.nan)
    beyond, dates, values = np.zeros((3, shape[1]))
    span_ns = bundle.manifest.start_ns - _AROUND_NS, bundle.manifest.end_ns + _AROUND_NS
    for table in bundle.telemetry(metrics=metrics):
        table = table.filter(table["valid"])
        row, column = codes(table["component"], bundle.measured), codes(table["metric"], metrics)
        at_ns, value = table["t_event"].to_numpy(), table["value"].to_numpy()
        began = np.fmin(began, _by(np.fmin, row, at_ns, shape[0]))
        ended = np.fmax(ended, _by(np.fmax, row, at_ns, shape[0]))
        cell = row * shape[1] + column
        new = np.flatnonzero(np.isnan(first.flat[cell]))
        cells, index = np.unique(cell[new], return_index=True)
        first.flat[cells] = value[new[index]]
        is_date, is_beyond = _dates(value, at_ns, span_ns)
        beyond += np.bincount(column[is_beyond], minlength=shape[1])
        dates += np.bincount(column[is_date], minlength=shape[1])
        values += np.bincount(column, minlength=shape[1])
    return Lives(began, ended, first, beyond, dates, values)


def _by(reduce: np.ufunc, row: Ints, at_ns: Ints, rows: int) -> Floats:
    """Return the least or the most of some moments by component, NaN where there is none."""
    found: Floats = np.full(rows, np.nan)
    reduce.at(found, row, at_ns.astype(np.float64))
    return found


def _dates(value: Floats, at_ns: Ints, span_ns: tuple[int, int]) -> tuple[Bools, Bools]:
    """Return which values are dates about the time of the trace, and which lie beyond theirs."""
    is_date: Bools = np.zeros(len(value), dtype=np.bool_)
    is_beyond = is_date.copy()
    for unit_ns in _UNITS_NS.values():
        with np.errstate(over="ignore"):
            moment_ns = value * unit_ns
        near = (moment_ns >= span_ns[0]) & (moment_ns <= span_ns[1])
        is_date |= near
        is_beyond |= near & (moment_ns > at_ns + 3600 * SECOND_NS)
    return is_date, is_beyond


def _why(lives: Lives, column: int, failed: Bools, ended_before_ns: int) -> str:
    """Return what a column knows that it cannot know, or nothing."""
    values, first = lives.values[column], lives.first[:, column]
    if lives.dates[column] > _DATE_SHARE * values > 0:
        share = lives.beyond[column] / values
        if share >= _BEYOND_SHARE:
            return f"{share:.0%} of its values are dates beyond their moment"
    known = ~np.isnan(first)
    ended = known & (lives.ended_ns < ended_before_ns)
    correlation = related(first[ended], lives.began_ns[ended], lives.ended_ns[ended])
    if correlation >= RELATED:
        return (
            f"its first value tells how long {ended.sum()} components that ended were there, rank "
            f"correlation {correlation:.2f}"
        )
    area = apart(first[known & failed], first[known & ~failed])
    if area >= APART:
        return (
            f"its first value tells the {(known & failed).sum()} components that failed at any "
            f"time from the others, area under the ROC curve {area:.3f}"
        )
    return ""


def related(first: Floats, began_ns: Floats, ended_ns: Floats) -> float:
    """Return how first values are related to the ends, beside when each began; 0 of few."""
    if len(first) < FEWEST:
        return 0.0
    ranks = [_ranks(values) for values in (first, began_ns, ended_ns, ended_ns - began_ns)]
    own, *others = (_without(values, ranks[1]) for values in (ranks[0], *ranks[2:]))
    return max(abs(_correlation(own, other)) for other in others)


def known_beside(name: str, first: Mapping[str, Floats], began_ns: Floats, ended_ns: Floats) -> str:
    """Return what a column knows beside another one, such as how old somebody will be.

    Of two that know it together, the age as it goes and as it came, the one is blamed that is the
    greater the longer somebody is there: without it the other knows nothing.

    Parameters
    ----------
    first : mapping of str to (ended,) float64
        First values of those that ended, by column; those that know the future by themselves are
        left out, beside which the beginning tells the end.
    """
    for other, values in first.items():
        known = np.flatnonzero(~np.isnan(first[name]) & ~np.isnan(values))
        if other == name or len(known) < FEWEST:
            continue
        known = known[:: -(-len(known) // _MOST)]
        span_ns = ended_ns[known] - began_ns[known]
        beside = np.column_stack([np.ones(len(span_ns)), began_ns[known] / 1e9, values[known]])
        own, length = (_rest(one, beside) for one in (first[name][known], span_ns))
        correlation = _correlation(_ranks(own), _ranks(length))
        if correlation >= RELATED_BESIDE:
            return (
                f"beside {other} its first value tells how long {len(known)} "
                f"components that ended were there, rank correlation {correlation:.2f}"
            )
    return ""


def _rest(values: Floats, beside: Floats) -> Floats:
    """Return what of some values, as shares of the greatest, is no straight function of others.

    It is 0 where that is rounding.
    """
    columns = np.column_stack([values, beside])
    scale = np.abs(columns).max(axis=0)
    scaled = columns / np.where(scale > 0.0, scale, 1.0)
    own, others = scaled[:, 0], scaled[:, 1:]
    rest: Floats = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    rest[np.abs(rest) <= 1e-9] = 0.0
    return rest


def _ranks(values: Floats) -> Floats:
    from scipy.stats import rankdata

    ranks: Floats = rankdata(values) - (len(values) + 1) / 2
    return ranks


def _without(ranks: Floats, of: Floats) -> Floats:
    """Return what of some ranks others do not tell."""
    square = float(of @ of)
    return ranks - of * (float(ranks @ of) / square) if square else ranks


def _correlation(one: Floats, other: Floats) -> float:
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale > 1e-9 * len(one) ** 3 else 0.0


def apart(failed: Floats, others: Floats) -> float:
    """Return the area under the ROC curve, either way round; 0 of few."""
    if min(len(failed), len(others)) < FEWEST:
        return 0.0
    ranks = _ranks(np.concatenate([failed, others]))
    above = ranks[: len(failed)].sum() / (len(failed) * len(others))
    return 0.5 + abs(float(above))
