"""How what is known of components hangs together with what became of them.

What the leaky-column checks ask, one column at a time. Each bar is a great effect, and where
components are few, so many errors that of a hundred columns that know nothing one passes in fewer
than one of a hundred traces.
"""

import math
from collections.abc import Mapping

import numpy as np

from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import Bools
from torchloom_core.plugin.arrays import Floats, Ints

FEWEST = 20
"""Components that ended, or that failed, of which a relation is told."""
RELATED = 0.8
"""A partial rank correlation that is none of age or model."""
RELATED_BESIDE = 0.9
"""The same beside another column, of which there are many."""
APART = 0.95
"""How often the value of one that fails is beyond that of one that does not."""
OPPOSED = 0.5
"""A rank correlation of two halves beside their sum."""
_ERRORS = 5.0
"""So many errors of a correlation are none by chance."""
_MOST = 1000
"""Components of which a relation beside another column is told: pairs of columns are many."""
DAY_NS = 86_400 * SECOND_NS
"""What is nearer together may be of one incident."""


def related(first: Floats, began_ns: Floats, ended_ns: Floats) -> float:
    """Return how first values are related to the ends, beside when each began; 0 if hardly."""
    if len(first) < FEWEST:
        return 0.0
    ranks = [_ranks(values) for values in (first, began_ns, ended_ns, ended_ns - began_ns)]
    own, *others = (_without(values, ranks[1]) for values in (ranks[0], *ranks[2:]))
    found = max(abs(_correlation(own, other)) for other in others)
    return found if found >= _bar(RELATED, len(first)) else 0.0


def related_within(owner: Ints, values: Floats, came_ns: Floats, next_ns: Floats) -> float:
    """Return how values are related to what comes next, of each owner's own; 0 if hardly.

    What one owner has more of than another, and what goes up or down with time, tells nothing.
    """
    count = len(owner) - len(np.unique(owner))
    if count < FEWEST:
        return 0.0
    ranks = (_ranks_within(owner, one) for one in (values, came_ns, next_ns - came_ns))
    own, when, left = ranks
    found = abs(_correlation(_without(own, when), _without(left, when)))
    return found if found >= _bar(RELATED, count) else 0.0


def _ranks_within(owner: Ints, values: Floats) -> Floats:
    """Return the rank of each among those of its owner, 0 in the middle."""
    number = np.unique(owner, return_inverse=True)[1]
    ranks = _ranks(number * len(values) * 2.0 + _ranks(values))
    return ranks - (np.bincount(number, ranks) / np.bincount(number))[number]


def _bar(least: float, count: int) -> float:
    """Return the correlation that is great enough, and is none by chance of so many."""
    return max(least, math.tanh(_ERRORS / math.sqrt(count - 4)))


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
        beside = np.column_stack([np.ones(len(span_ns)), began_ns[known], values[known]])
        own, length = (_rest(one, beside) for one in (first[name][known], span_ns))
        correlation = _correlation(_ranks(own), _ranks(length))
        if correlation >= RELATED_BESIDE:
            return (
                f"beside {other} its first value tells how long {len(known)} "
                f"components that ended were there, rank correlation {correlation:.2f}"
            )
    return ""


def apart_beside(name: str, first: Mapping[str, Floats], failed: Bools) -> str:
    """Return what a column knows of who fails beside another one, of which it is a function else.

    Of two that know it together the one is blamed that tells more of it by itself.

    Parameters
    ----------
    first : mapping of str to (components,) float64
        First values, by column; those that know who fails by themselves are left out.
    failed : (components,) bool
        Who failed at any time.
    """
    own = apart(*_split(first[name], failed))
    for other, values in first.items():
        both = np.flatnonzero(~np.isnan(first[name]) & ~np.isnan(values))
        if other == name or len(both) < 2 * FEWEST or apart(*_split(values, failed)) > own:
            continue
        both = both[:: -(-len(both) // _MOST)]
        beside = np.column_stack([np.ones(len(both)), values[both]])
        rest = _rest(first[name][both], beside)
        fails = failed[both]
        if (area := apart(rest[fails], rest[~fails])) >= APART:
            return (
                f"beside {other} its first value tells the {fails.sum()} components that failed at "
                f"any time from the others, area under the ROC curve {area:.3f}"
            )
    return ""


def _split(values: Floats, failed: Bools) -> tuple[Floats, Floats]:
    known = ~np.isnan(values)
    return values[known & failed], values[known & ~failed]


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
    """Return the ranks, those of equals their mean, about 0."""
    _, at, often = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(often) - (often - 1) / 2 - (len(values) + 1) / 2)[at]
    return ranks


def _without(ranks: Floats, of: Floats) -> Floats:
    """Return what of some ranks others do not tell."""
    square = float(of @ of)
    return ranks - of * (float(ranks @ of) / square) if square else ranks


def _correlation(one: Floats, other: Floats) -> float:
    scale = math.sqrt(float(one @ one) * float(other @ other))
    return float(one @ other) / scale if scale > 1e-9 * len(one) ** 3 else 0.0


def apart(failed: Floats, others: Floats) -> float:
    """Return the area under the ROC curve, either way round; one half of few."""
    return 0.5 + abs(above_others(failed, others) - 0.5)


def above_others(failed: Floats, others: Floats) -> float:
    """Return how often one that failed is above one that did not, half if equal; half of few."""
    if min(len(failed), len(others)) < FEWEST:
        return 0.5
    ranks = _ranks(np.concatenate([failed, others]))
    return 0.5 + float(ranks[: len(failed)].sum()) / (len(failed) * len(others))


def share_of_others(group: Ints, failed_ns: Floats) -> Floats:
    """Return which share of the others of each one's group failed, ``(components,)``.

    It is NaN where there are none. Those that failed within a day of one another may have done so
    together, as a rack does that loses its power, and do not count for one another.

    Parameters
    ----------
    group : (components,) int64
        From 0 on.
    failed_ns : (components,) float64
        When each failed first, NaN of those that never did.
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


def opposed(values: Floats, early: Floats, late: Floats) -> float:
    """Return how far a number is the sum of two, 1 at the most; 0 where it may have come before.

    What was known beforehand has to do with both alike: of those that have nearly the same of it,
    one tells nothing of the other, or a little more of the same. Of those that have nearly the same
    sum, who has more of the one has less of the other.
    """
    if len(values) < FEWEST:
        return 0.0
    order = np.argsort(values, kind="stable")
    found = _correlation(*(_ranks(np.diff(half[order])) for half in (early, late)))
    bar = _bar(OPPOSED, len(values))
    if found > -bar or _correlation(_ranks(early), _ranks(late)) < -bar / 2:
        return 0.0
    return -found
