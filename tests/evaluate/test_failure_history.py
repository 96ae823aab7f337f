"""The failure history of components, and leaks in shared values."""

import numpy as np

from torchloom_core.lab.evaluate.forecasts.failure_history import (
    FailureHistory,
    failure_history_of,
    leak_by_group,
    leak_by_total,
)
from torchloom_core.lab.evaluate.forecasts.labels import Incidents
from torchloom_core.lab.evaluate.forecasts.relations import DAY_NS

NAN = np.nan


def failing(days):
    """Return the history of components that failed on these days, NaN never."""
    days = np.asarray(days, dtype=float)
    return FailureHistory(days * DAY_NS, np.zeros(len(days)), np.zeros(len(days)))


def test_the_history_has_first_failures_and_counts_per_half():
    row, start_ns = np.array([1, 0, 1, 1]), np.array([5, 10, 10, 20])
    found = Incidents(row, start_ns, start_ns + 1, np.ones(4, dtype=np.int64))
    history = failure_history_of(found, 3, middle_ns=10)
    np.testing.assert_array_equal(history.failed_ns, [10.0, 5.0, NAN])
    assert (history.early.tolist(), history.late.tolist()) == ([0, 1, 0], [1, 2, 0])
    assert {half.dtype.kind for half in history} == {"f"}


def test_others_share_the_fates_of_what_they_hang_on():
    history = FailureHistory(
        np.array([10.0, 5.0, NAN]), np.array([0.0, 1, 0]), np.array([1.0, 2, 0])
    )
    of = history.of([[0, 1], [2], [], [2, 0]])
    np.testing.assert_array_equal(of.failed_ns, [5.0, NAN, NAN, 10.0])
    assert (of.early.tolist(), of.late.tolist()) == ([1, 0, 0, 0], [3, 0, 0, 1])


def test_no_components_give_no_leak():
    assert leak_by_group([], failing([])) == ""
    assert leak_by_total(np.zeros(0), failing([])) == ""


def test_failures_of_others_in_a_group_are_a_leak():
    """Failures are more than a day apart; two failed components share their value with no other."""
    cells = ["bad"] * 25 + ["good"] * 60 + ["alone", "alone too"]
    days = [*(2.0 * np.arange(25)), *[NAN] * 60, 100.0, 102.0]
    assert leak_by_group(cells, failing(days)) == (
        "failures of others with the same value separate the 25 components that failed at any "
        "time from those that did not, ROC AUC 1.000"
    )
    mixed = np.random.default_rng(0).permutation(days)
    assert leak_by_group(cells, failing(mixed)) == ""
