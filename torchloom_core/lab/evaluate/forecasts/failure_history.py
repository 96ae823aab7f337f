"""Failure history of components, and leaks of it in groups and totals."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.evaluate.forecasts.labels import Incidents
from torchloom_core.lab.evaluate.forecasts.relations import (
    DAY_NS,
    FEWEST,
    SEPARATED,
    auc,
    auc_either_way,
    opposite_correlation,
    share_of_others,
)


class FailureHistory(NamedTuple):
    """Failures of some components.

    Attributes
    ----------
    failed_ns : (components,) float64
        Time of the first failure, NaN without one.
    early, late : (components,) float64
        Number of failures in the first half of the trace, and in the second.
    """

    failed_ns: Floats
    early: Floats
    late: Floats

    def of(self, rows: Sequence[Sequence[int]]) -> "FailureHistory":
        """Return the history of groups of components, one group per item."""
        return FailureHistory(
            np.array([np.fmin.reduce(self.failed_ns[[*own]], initial=np.nan) for own in rows]),
            *(np.array([half[[*own]].sum() for own in rows]) for half in self[1:]),
        )


def failure_history_of(found: Incidents, components: int, middle_ns: int) -> FailureHistory:
    """Return the failure history of the watched components."""
    failed_ns: Floats = np.full(components, np.nan)
    np.fmin.at(failed_ns, found.row, found.start_ns.astype(np.float64))
    is_late = found.start_ns >= middle_ns
    return FailureHistory(
        failed_ns, *(_count(found.row[half], components) for half in (~is_late, is_late))
    )


def _count(rows: Ints, components: int) -> Floats:
    return np.bincount(rows, minlength=components).astype(np.float64)


def leak_by_group(cells: Sequence[object], history: FailureHistory) -> str:
    """Return how sharing a value with others predicts failures, or ""."""
    number = {cell: place for place, cell in enumerate(dict.fromkeys(cells))}
    group = np.array([number[cell] for cell in cells], dtype=np.int64)
    failed = ~np.isnan(history.failed_ns)
    share = share_of_others(group, history.failed_ns)
    valid = ~np.isnan(share)
    area = auc(share[valid & failed], share[valid & ~failed])
    if area >= SEPARATED:
        return (
            f"failures of others with the same value separate the {(valid & failed).sum()} "
            f"components that failed at any time from those that did not, ROC AUC {area:.3f}"
        )
    most = group == np.argmax(np.bincount(group, minlength=1))
    on_days = len(np.unique(history.failed_ns[failed] // DAY_NS))
    shared = (np.bincount(group)[group] > 1).astype(float)
    area = auc_either_way(shared[failed], shared[~failed])
    if area >= SEPARATED and on_days >= FEWEST:
        return (
            f"whether another component has the same value separates the {failed.sum()} components "
            f"that failed at any time from those that did not, ROC AUC {area:.3f}"
        )
    area = auc(most[~failed].astype(float), most[failed].astype(float))
    if area >= SEPARATED and on_days >= FEWEST:
        return (
            f"the most common value separates those that never failed from the {failed.sum()} that "
            f"did, ROC AUC {area:.3f}"
        )
    return ""


def leak_by_total(values: Floats, history: FailureHistory) -> str:
    """Return how a number behaves as the total of failures per component, or ""."""
    valid = ~np.isnan(values)
    if (valid & (history.early + history.late >= 2)).sum() < FEWEST:
        return ""
    sums = opposite_correlation(values[valid], history.early[valid], history.late[valid])
    if not sums:
        return ""
    return (
        f"it behaves as a total, as failures of {valid.sum()} components in the two halves of the "
        f"trace have rank correlation {-sums:.2f} at equal values"
    )
