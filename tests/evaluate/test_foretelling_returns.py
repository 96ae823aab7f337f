"""The times between the failures of a component."""

import numpy as np

from torchloom_core.evaluate.forecasts.foretelling_returns import _between_failures
from torchloom_core.evaluate.forecasts.labels import Incidents


def test_times_between_failures_follow_one_another_whatever_outlasts_them():
    """A rack is of nodes 0 and 1, and the first failure of node 0 outlasts all that follow."""
    start_ns, end_ns = np.array([10, 20, 30, 40, 50]), np.array([90, 21, 33, 41, 51])
    row = np.array([0, 1, 2, 1, 2])
    found = Incidents(row, start_ns, end_ns, np.ones(5, dtype=np.int64))
    owner, began_ns, next_ns = _between_failures(found, [[0, 1], [2], [3]], start_ns=0)
    assert owner.tolist() == [0, 0, 0, 1, 1]
    assert began_ns.tolist() == [0, 20, 40, 0, 33]
    assert next_ns.tolist() == [10, 20, 40, 30, 50]
