"""The views of a trace are those that a predictor would have had."""

import math

import numpy as np
import pytest

from tests.trace.small import NODES, at, bundle, fault
from torchloom_core.config.schema import Costs
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.trace.feed.feed import views
from torchloom_core.plugin import Need, NeedFaults, NeedPast

NAN = math.nan
DAY_S = 86_400
TEMP = [(float(s), "a", "temp", float(s)) for s in range(60)]


def look(trace, needs=(), tick_s=5.0, every_s=5.0, repair_s=DAY_S, **span):
    options = {"tick_s": tick_s, "every_s": every_s, "repair_s": repair_s}
    return views(trace, needs=needs, **options, **span)


def test_a_view_comes_every_so_many_ticks_from_the_start_on(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES)
    assert [view.now_ns for view in look(trace, every_s=20)] == [at(20), at(40), at(60)]
    assert [view.now_ns for view in look(trace, every_s=11, start_ns=at(30), end_ns=at(55))] == [
        at(40),
        at(50),
    ]


def test_no_view_is_of_the_start_itself(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(31)])
    late = {"start_ns": at(30), "end_ns": at(50), "every_s": 10}
    seen = [view.now_ns for view in look(trace, [Need("temp", window_s=20)], **late)]
    assert seen == [at(40), at(50)]


def test_a_value_is_valid_for_three_ticks_and_costs_and_events_are_those_given(tmp_path):
    rows = [(1.0, "a", "temp", 5.0)]
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(2, "b", fatal=False)], rows)
    costs = Costs(checkpoint_s=77.0)
    latest = []
    for view in look(trace, [Need("temp")], end_ns=at(25), costs=costs, shows=lambda _: False):
        latest.append(view.latest("temp")[0].item())
        assert (view.costs, view.faults) == (costs, ())
    assert repr(latest) == repr([5.0] * 4 + [NAN])


def test_a_view_has_workers_nodes_and_metrics(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(22, resolved_s=33)], TEMP)
    seen = [
        (view.state, view.latest("temp").tolist(), len(view.faults))
        for view in look(trace, [Need("temp")], every_s=10)
    ]
    up, down = ("training", "training"), ("gone", "training")
    assert repr(seen) == repr(
        [
            (up, [10.0, NAN], 0),
            (up, [20.0, NAN], 0),
            (down, [30.0, NAN], 2),
            (up, [40.0, NAN], 2),
            (up, [50.0, NAN], 2),
            (up, [59.0, NAN], 2),
        ]
    )
    view = next(look(trace))
    assert (view.workers, view.node, view.rack) == (("a", "b"), ("a", "b"), ("r0", "r0"))


def test_the_first_window_is_as_full_as_the_last(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES, TEMP)
    windows = [
        view.window("temp", 20)[0].tolist()
        for view in look(trace, [Need("temp", window_s=20)], start_ns=at(30), every_s=25)
    ]
    assert windows == [[40.0, 45.0, 50.0, 55.0]]
    first = next(look(trace, [Need("temp", window_s=20)], start_ns=at(10)))
    assert repr(first.window("temp", 20)[0].tolist()) == repr([NAN, 5.0, 10.0, 15.0])


def test_the_past_begins_with_the_trace(tmp_path):
    rows = [(1.0, "a", "errors", 0.0), (12.0, "a", "errors", 2.0), (31.0, "b", "errors", 7.0)]
    trace = bundle(tmp_path / "t.tltrace", NODES, rows)
    needs = [Need("errors"), NeedPast(("errors",))]
    (late,) = look(trace, needs, start_ns=at(50), end_ns=at(55))
    *_, whole = look(trace, needs, end_ns=at(55))
    for view in (late, whole):
        assert view.last_known("errors").tolist() == [2.0, 7.0]
        assert repr(view.moved_s("errors").tolist()) == repr([40.0, NAN])
        assert view.watched_s.tolist() == [50.0, 20.0]
    (without,) = look(trace, [Need("errors")], start_ns=at(50), end_ns=at(55))
    assert np.isnan(without.last_known("errors")).all()


def test_a_view_of_every_few_ticks_is_that_of_every_tick(tmp_path):
    rows = [
        *((float(s), "a", "errors", float(s // 20)) for s in range(0, 60, 3)),
        *((float(s), "b", "errors", float(s)) for s in (4, 33, 34, 58)),
    ]
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(22, resolved_s=31)], rows)
    needs = [Need("errors", window_s=15), NeedPast(("errors",))]

    def seen(view):
        arrays = [view.window("errors", 15), view.last_known("errors"), view.moved_s("errors")]
        arrays += [view.rested_s("errors"), view.changed_s("errors"), view.watched_s]
        return view.state, [array.tolist() for array in arrays]

    every = {view.now_ns: repr(seen(view)) for view in look(trace, needs)}
    few = {view.now_ns: repr(seen(view)) for view in look(trace, needs, every_s=20)}
    assert few == {now_ns: every[now_ns] for now_ns in (at(20), at(40), at(60))}
    (late,) = look(trace, needs, start_ns=at(50), end_ns=at(60), every_s=10)
    assert repr(seen(late)) == every[at(60)]


def test_faults_before_the_start_are_remembered_as_long_as_declared(tmp_path):
    rows = [*NODES, fault(2, fatal=False)]
    trace = bundle(tmp_path / "t.tltrace", rows, seconds=3 * DAY_S)
    late = {"tick_s": 600.0, "start_ns": at(2 * DAY_S)}
    first = next(look(trace, [NeedFaults(3 * DAY_S)], **late))
    assert [(fault.node, fault.ts_ns) for fault in first.faults] == [("a", at(2))]
    assert next(look(trace, **late)).faults == ()


def test_faults_of_the_last_day_are_in_a_view_without_needs_as_in_the_weaver(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(2, fatal=False)])
    for needs in ((), [NeedFaults(30.0)]):
        first = next(look(trace, needs, start_ns=at(40)))
        assert [fault.ts_ns for fault in first.faults] == [at(2)]


def test_a_view_of_a_later_start_is_that_of_the_whole_trace(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES, TEMP)
    needs = [Need("temp", window_s=10)]
    late = {view.now_ns: view.window("temp", 10).copy() for view in look(trace, needs)}
    for view in look(trace, needs, start_ns=at(30)):
        np.testing.assert_array_equal(view.window("temp", 10), late[view.now_ns])


def test_a_window_of_too_many_ticks_is_refused(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", NODES)
    with pytest.raises(PluginError, match="need window_s of at most 100000 ticks of 1 s"):
        next(look(trace, [Need("temp", window_s=2e5)], tick_s=1.0))
