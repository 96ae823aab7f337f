"""Statistics that relate columns to failures, for the leaky-column checks.

Each threshold is a large effect. With few components it rises with the standard error, so that of a
hundred unrelated columns one is flagged in less than one of a hundred traces.
"""

import math
from collections.abc import Mapping

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.alarms import Bools

FEWEST = 20
"""Minimum number of ended or failed components for a result."""
RELATED = 0.8
"""Minimum partial rank correlation, above any effect of age or model."""
RELATED_BESIDE = 0.9
"""The same given another column, as pairs of columns are many."""
SEPARATED = 0.95
"""Minimum ROC AUC between failed and other components."""
OPPOSED = 0.5
"""Minimum negative rank correlation of the two halves at equal sums."""
_ERRORS = 5.0
"""Standard errors above which a correlation is not by chance."""
_MOST = 1000
"""Maximum number of components per pair of columns, to bound the time."""
DAY_NS = 86_400 * SECOND_NS
"""Failures less than this apart may be one incident."""


def lifetime_correlation(first: Floats, began_ns: Floats, ended_ns: Floats) -> float:
    """Return the partial rank correlation of first values and ends, given starts; 0 if weak."""
    if len(first) < FEWEST:
        return 0.0
    ranks = [_ranks(values) for values in (first, began_ns, ended_ns, ended_ns - began_ns)]
    own, *others = (_without(values, ranks[1]) for values in (ranks[0], *ranks[2:]))
    found = max(abs(_correlation(own, other)) for other in others)
    return found if found >= _bar(RELATED, len(first)) else 0.0


def correlation_within(owner: Ints, values: Floats, came_ns: Floats, next_ns: Floats) -> float:
    """Return the rank correlation of values and remaining times within owners; 0 if weak.

    Differences between owners, and trends over time, do not count.
    """
    count = len(owner) - len(np.unique(owner))
    if count < FEWEST:
        return 0.0
    ranks = (_ranks_within(owner, one) for one in (values, came_ns, next_ns - came_ns))
    own, when, left = ranks
    found = abs(_correlation(_without(own, when), _without(left, when)))
    return found if found >= _bar(RELATED, count) else 0.0


def _ranks_within(owner: Ints, values: Floats) -> Floats:
    """Return the centred rank of each value within its owner."""
    number = np.unique(owner, return_inverse=True)[1]
    ranks = _ranks(number * len(values) * 2.0 + _ranks(values))
    return ranks - (np.bincount(number, ranks) / np.bincount(number))[number]


def _bar(least: float, count: int) -> float:
    """Return the correlation threshold for a number of values: large, and not by chance."""
    return max(least, math.tanh(_ERRORS / math.sqrt(count - 4)))


def lifetime_leak_given(
    name: str, first: Mapping[str, Floats], began_ns: Floats, ended_ns: Floats
) -> str:
    """Return how a column predicts lifetimes given another one, or "".

    Of two columns that leak together, such as the age at the end and the age at the start, the one
    that grows with the lifetime is flagged.

    Parameters
    ----------
    first : mapping of str to (ended,) float64
        First values of the ended components, by column, without columns that are leaky alone.
    """
    for other, values in first.items():
        valid = np.flatnonzero(~np.isnan(first[name]) & ~np.isnan(values))
        if other == name or len(valid) < FEWEST:
            continue
        valid = valid[:: -(-len(valid) // _MOST)]
        span_ns = ended_ns[valid] - began_ns[valid]
        beside = np.column_stack([np.ones(len(span_ns)), began_ns[valid], values[valid]])
        own, length = (_rest(one, beside) for one in (first[name][valid], span_ns))
        correlation = _correlation(_ranks(own), _ranks(length))
        if correlation >= RELATED_BESIDE:
            return (
                f"given {other}, its first value predicts the lifetime of {len(valid)} "
                f"components, rank correlation {correlation:.2f}"
            )
    return ""


def separation_given(name: str, first: Mapping[str, Floats], failed: Bools) -> str:
    """Return how a column separates failed components given another column, or "".

    Of two columns that leak together, the one that separates better alone is flagged.

    Parameters
    ----------
    first : mapping of str to (components,) float64
        First values by column, without columns that are leaky alone.
    failed : (components,) bool
        Which components failed at any time.
    """
    own = auc_either_way(*_split(first[name], failed))
    for other, values in first.items():
        both = np.flatnonzero(~np.isnan(first[name]) & ~np.isnan(values))
        if other == name or len(both) < 2 * FEWEST or auc_either_way(*_split(values, failed)) > own:
            continue
        both = both[:: -(-len(both) // _MOST)]
        beside = np.column_stack([np.ones(len(both)), values[both]])
        rest = _rest(first[name][both], beside)
        fails = failed[both]
        if (area := auc_either_way(rest[fails], rest[~fails])) >= SEPARATED:
            return (
                f"given {other}, its first value separates the {fails.sum()} components that "
                f"failed at any time from the others, ROC AUC {area:.3f}"
            )
    return ""


def _split(values: Floats, failed: Bools) -> tuple[Floats, Floats]:
    valid = ~np.isnan(values)
    return values[valid & failed], values[valid & ~failed]


def _rest(values: Floats, beside: Floats) -> Floats:
    """Return the residual of scaled values after a linear fit on others.

    Rounding errors are set to 0.
    """
    columns = np.column_stack([values, beside])
    scale = np.abs(columns).max(axis=0)
    scaled = columns / np.where(scale > 0.0, scale, 1.0)
    own, others = scaled[:, 0], scaled[:, 1:]
    rest: Floats = own - others @ np.linalg.lstsq(others, own, rcond=None)[0]
    rest[np.abs(rest) <= 1e-9] = 0.0
    return rest


def _ranks(values: Floats) -> Floats:
    """Return the centred ranks, averaged over ties."""
    _, at, often = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(often) - (often - 1) / 2 - (len(values) + 1) / 2)[at]
    return ranks


def _without(ranks: Floats, of: Floats) -> Floats:
    """Return ranks with the linear effect of others removed."""
    square = float(of @ of)
    return ranks - of * (float(ranks @ of) / square) if square else ranks


def _correlation(one: Floats, other: Floats) -> float:
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale > 1e-9 * len(one) ** 3 else 0.0


def auc_either_way(failed: Floats, others: Floats) -> float:
    """Return the ROC AUC in the better direction; one half with too few values."""
    return 0.5 + abs(auc(failed, others) - 0.5)


def auc(failed: Floats, others: Floats) -> float:
    """Return the ROC AUC of failed against other components; one half with too few values."""
    if min(len(failed), len(others)) < FEWEST:
        return 0.5
    ranks = _ranks(np.concatenate([failed, others]))
    return 0.5 + float(ranks[: len(failed)].sum()) / (len(failed) * len(others))


def share_of_others(group: Ints, failed_ns: Floats) -> Floats:
    """Return the share of failed components among the others of each group, ``(components,)``.

    It is NaN without others. Components that failed within a day of each other, such as a rack that
    lost power, do not count for each other.

    Parameters
    ----------
    group : (components,) int64
        Group number, from 0.
    failed_ns : (components,) float64
        Time of the first failure, NaN without one.
    """
    failed = ~np.isnan(failed_ns)
    together = np.zeros(len(group))
    order = np.lexsort((failed_ns, group))
    order = order[failed[order]]
    for own in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        at_ns = failed_ns[own]
        last = np.searchsorted(at_ns, at_ns + DAY_NS, side="right")
        together[own] = last - np.searchsorted(at_ns, at_ns - DAY_NS) - 1
    members = np.bincount(group)[group] - 1.0 - together
    failures = np.bincount(group, failed)[group] - failed - together
    share: Floats = np.full(len(group), np.nan)
    np.divide(failures, members, out=share, where=members > 0)
    return share


def opposite_correlation(values: Floats, early: Floats, late: Floats) -> float:
    """Return how strongly a number behaves as the sum of two, at most 1; 0 if it does not.

    An honest predictor relates to both halves alike: at equal values of it, the halves are
    uncorrelated or correlate positively. At equal sums they correlate negatively.
    """
    if len(values) < FEWEST:
        return 0.0
    order = np.argsort(values, kind="stable")
    found = _correlation(*(_ranks(np.diff(half[order])) for half in (early, late)))
    bar = _bar(OPPOSED, len(values))
    if found > -bar or _correlation(_ranks(early), _ranks(late)) < -bar / 2:
        return 0.0
    return -found
