"""The times between failures of a component, and leaks in the first value of each."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa

from torchloom_core.lab.evaluate.forecasts.component_inputs import Turns, see, turns_of
from torchloom_core.lab.evaluate.forecasts.labels import Incidents, Task
from torchloom_core.lab.evaluate.forecasts.leaks import leaky_returns
from torchloom_core.lab.trace.bundle.telemetry import conform

SECOND_NS = 10**9
START_S, LENGTH_S = 1_700_000_000, 100
NAN = np.nan


def at(second):
    return START_S * SECOND_NS + round(second * SECOND_NS)


def incidents(row, start_ns, end_ns):
    row = np.array(row)
    return Incidents(row, np.array(start_ns), np.array(end_ns), np.ones(len(row), dtype=np.int64))


class Recorded:
    """What was measured in 100 s, as ``(second, component, metric, value)``, two rows at a time."""

    def __init__(self, rows, invalid=()):
        self.manifest = SimpleNamespace(start_ns=at(0), end_ns=at(LENGTH_S))
        frame = pd.DataFrame(rows, columns=["second", "component", "metric", "value"])
        self._frame = frame.assign(
            t_event=[at(second) for second in frame["second"]],
            t_avail=[at(second) for second in frame["second"]],
            valid=[second not in invalid for second in frame["second"]],
        ).drop(columns="second")

    def telemetry(self, metrics):
        selected = self._frame[self._frame["metric"].isin(metrics)]
        for first in range(0, len(selected), 2):
            part = selected.iloc[first : first + 2]
            yield conform(pa.table({name: part[name].to_numpy() for name in part}), "here")


def firsts(rows, owner, began_s, metrics=("x",), **more):
    """Return when the first values came, in seconds, and what they were."""
    began_ns = np.array([at(second) for second in began_s])
    turns = Turns(np.array(owner), began_ns, began_ns.astype(float))
    found = see(Recorded(rows, **more), metrics, ["a", "b"], turns)
    return ((found.returned_ns - at(0)) / SECOND_NS).round(3).tolist(), found.returned.tolist()


def test_times_between_failures_follow_one_another_whatever_outlasts_them():
    """A rack is of nodes 0 and 1, and the first failure of node 0 outlasts all that follow."""
    found = incidents([0, 1, 2, 1, 2], [10, 20, 30, 40, 50], [90, 21, 33, 41, 51])
    owner, began_ns, next_ns = turns_of(found, [[0, 1], [2], [3]], start_ns=0)
    assert owner.tolist() == [0, 0, 0, 1, 1]
    assert began_ns.tolist() == [0, 20, 40, 0, 33]
    assert next_ns.tolist() == [10, 20, 40, 30, 50]


def test_of_each_time_the_first_value_of_each_metric_is_taken():
    rows = [
        (5, "a", "x", 1.0), (10.4, "a", "x", 2.0), (12, "a", "x", 3.0), (12, "a", "y", 4.0),
        (12, "b", "x", 5.0), (50, "a", "x", 6.0), (60, "b", "x", 7.0), (60, "c", "x", 8.0),
        (70, "a", "x", 9.0), (90, "b", "y", 10.0),
    ]  # fmt: skip
    owner, began_s = [0, 0, 1, 1], [10.2, 40, 0, 55]
    assert firsts(rows, owner, began_s) == ([[10.4], [50.0], [12.0], [60.0]], [[2], [6], [5], [7]])
    came_s, first = firsts(rows, owner, began_s, ("y", "x"))
    np.testing.assert_array_equal(came_s, [[12, 10.4], [NAN, 50], [NAN, 12], [90, 60]])
    np.testing.assert_array_equal(first, [[4, 2], [NAN, 6], [NAN, 5], [10, 7]])


def left(count, horizon_s=10.0):
    """Return the flags of a metric that predicts the next failure, with some returns."""
    random = np.random.default_rng(0)
    rows, failed, back = [], [], []
    for node in range(2):
        for turn in range(count // 2 + (node < count % 2) + 1):
            began = 1000.0 * turn
            fails = began + 20 + random.integers(0, 900)
            failed.append((node, fails))
            back.append(fails + 1)
            rows.append((began + 10, "ab"[node], "left", fails - began))
            rows.append((began + 10, "ab"[node], "noise", random.random()))
    bundle = Recorded(rows)
    bundle.manifest.end_ns = at(100_000)
    order = np.argsort([second for _, second in failed])
    found = incidents(
        [failed[place][0] for place in order],
        [at(failed[place][1]) for place in order],
        [at(back[place]) for place in order],
    )
    metrics, turns = ["noise", "left"], turns_of(found, [[0], [1]], bundle.manifest.start_ns)
    seen = see(bundle, metrics, ["a", "b"], turns)
    return leaky_returns(seen, metrics, Task(horizon_s=horizon_s, repair_s=1.0))


def test_a_metric_that_predicts_the_next_failure_is_flagged_from_twenty_returns_on():
    assert left(19) == []
    assert left(20) == [
        (
            "left",
            "its first value after each of 22 returns predicts the time to the next failure, "
            "rank correlation 1.00",
        )
    ]
