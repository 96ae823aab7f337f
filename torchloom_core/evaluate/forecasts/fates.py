"""When the components of a trace failed, and what in a column tells of it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.evaluate.forecasts.labels import Incidents
from torchloom_core.evaluate.forecasts.relations import (
    APART,
    DAY_NS,
    FEWEST,
    above_others,
    apart,
    opposed,
    share_of_others,
)
from torchloom_core.plugin.arrays import Floats, Ints


class Fates(NamedTuple):
    """What became of some components.

    Attributes
    ----------
    failed_ns : (components,) float64
        When each failed first, NaN of those that never did.
    early, late : (components,) float64
        How often it failed in the first half of the trace, and in the second.
    """

    failed_ns: Floats
    early: Floats
    late: Floats

    def of(self, rows: Sequence[Sequence[int]]) -> "Fates":
        """Return the fates of others, each of which shares those of some components."""
        return Fates(
            np.array([np.fmin.reduce(self.failed_ns[[*own]], initial=np.nan) for own in rows]),
            *(np.array([half[[*own]].sum() for own in rows]) for half in self[1:]),
        )


def fates_of(found: Incidents, components: int, middle_ns: int) -> Fates:
    """Return the fates of the watched components."""
    failed_ns: Floats = np.full(components, np.nan)
    np.fmin.at(failed_ns, found.row, found.start_ns.astype(np.float64))
    is_late = found.start_ns >= middle_ns
    return Fates(failed_ns, *(_count(found.row[half], components) for half in (~is_late, is_late)))


def _count(rows: Ints, components: int) -> Floats:
    return np.bincount(rows, minlength=components).astype(np.float64)


def told_by_group(cells: Sequence[object], fates: Fates) -> str:
    """Return what who has the same as whom knows of who fails, or nothing."""
    number = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
    group = np.array([number[cell] for cell in cells], dtype=np.int64)
    failed = ~np.isnan(fates.failed_ns)
    share = share_of_others(group, fates.failed_ns)
    known = ~np.isnan(share)
    area = above_others(share[known & failed], share[known & ~failed])
    if area >= APART:
        return (
            f"the others that have the same tell the {(known & failed).sum()} components that "
            f"failed at any time from those that did not, area under the ROC curve {area:.3f}"
        )
    most = group == np.argmax(np.bincount(group, minlength=1))
    on_days = len(np.unique(fates.failed_ns[failed] // DAY_NS))
    shared = (np.bincount(group)[group] > 1).astype(float)
    area = apart(shared[failed], shared[~failed])
    if area >= APART and on_days >= FEWEST:
        return (
            f"whether another has the same tells the {failed.sum()} components that failed at any "
            f"time from those that did not, area under the ROC curve {area:.3f}"
        )
    area = above_others(most[~failed].astype(float), most[failed].astype(float))
    if area >= APART and on_days >= FEWEST:
        return (
            f"who has the most common tells those that never failed from the {failed.sum()} that "
            f"did, area under the ROC curve {area:.3f}"
        )
    return ""


def told_by_total(values: Floats, fates: Fates) -> str:
    """Return whether a number is as a total of how often each failed, or nothing."""
    known = ~np.isnan(values)
    if (known & (fates.early + fates.late >= 2)).sum() < FEWEST:
        return ""
    sums = opposed(values[known], fates.early[known], fates.late[known])
    if not sums:
        return ""
    return (
        f"of {known.sum()} components those that have the same failed the more in one half of the "
        f"trace the less in the other, as beside a total, rank correlation {-sums:.2f}"
    )
