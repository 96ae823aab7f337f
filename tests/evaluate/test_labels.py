"""A sample is positive, negative or unknown, by the usual rules of survival analysis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evaluate.traces import FOREVER_NS, HOUR_NS, drain, event, hours, task, watched
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.evaluate.forecasts.labels import Task, incidents, outcomes
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.silences import Silence

NAN = float("nan")


def judged(events=(), actions=(), of=None, *, count=10, end_h=100, known_h=None, nodes=1, **more):
    """Return outcomes of hourly moments, those of the one node alone if there is one."""
    known_ns = FOREVER_NS if known_h is None else known_h * HOUR_NS
    came = outcomes(
        events,
        actions,
        watched(nodes),
        hours(count),
        of or task(3),
        known_until_ns=known_ns,
        span=(0, end_h * HOUR_NS),
        **more,
    )
    return came[:, 0].tolist() if nodes == 1 else came


def same(found, wanted):
    return np.array_equal(found, wanted, equal_nan=True)


def test_a_failure_makes_the_horizon_before_it_positive_and_not_the_moment_it_starts():
    came = judged([event("n00000", 5, 5)])
    assert came == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]


def test_a_node_under_repair_is_neither_positive_nor_negative():
    came = judged([event("n00000", 2, 5)])
    assert same(came, [1, 1, NAN, NAN, NAN, 0, 0, 0, 0, 0])


def test_an_unknown_end_takes_the_assumed_repair_unless_the_failure_follows_the_job():
    of = task(3, repair_s=2 * 3600.0)
    assert same(judged([event("n00000", 2)], of=of), [1, 1, NAN, NAN, 0, 0, 0, 0, 0, 0])
    assert judged([event("n00000", 2, follows="job")], of=of)[2:] == [0.0] * 8


def test_an_outage_counts_once_it_is_available():
    late = [event("n00000", 1, 8, known_h=6)]
    assert judged(late, of=task(1), known_h=5)[:5] == [0.0] * 5
    assert same(judged(late, of=task(1), known_h=6)[:5], [1, NAN, NAN, NAN, NAN])


def test_a_failure_sooner_than_the_lead_is_too_late_to_be_right_or_wrong():
    came = judged([event("n00000", 5, 5)], of=task(4, lead_s=2 * 3600.0))
    assert same(came, [0, 1, 1, NAN, NAN, 0, 0, 0, 0, 0])


def test_the_end_of_the_span_censors_the_horizon_before_it():
    came = judged(end_h=8)
    assert same(came, [0, 0, 0, 0, 0, 0, NAN, NAN, NAN, NAN])


def test_a_failure_available_later_is_ignored_and_the_unknown_time_is_censored():
    late = event("n00000", 4, 4, known_h=9)
    assert same(judged([late], known_h=8), [0, 0, 0, 0, 0, 0, NAN, NAN, NAN, NAN])
    assert judged([late], known_h=9)[1:4] == [1, 1, 1]


def test_a_drained_node_is_neither_for_a_horizon_before_and_after():
    came = judged(actions=[drain("n00000", 4)])
    assert same(came, [0, NAN, NAN, NAN, NAN, NAN, NAN, 0, 0, 0])
    longer = judged(actions=[drain("n00000", 4, 9, kind="migrate")])
    assert same(longer, [0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0])


def test_a_reboot_prevents_nothing():
    assert judged(actions=[drain("n00000", 4, kind="reboot")]) == [0.0] * 10


def test_an_uncertain_label_is_neither_whatever_follows_it():
    doubtful = event("n00000", 5, 5, label="uncertain")
    assert same(judged([doubtful])[1:6], [0, NAN, NAN, NAN, 0])
    assert same(judged([doubtful, event("n00000", 7, 7)])[1:7], [0, NAN, NAN, NAN, 1, 1])


def test_a_component_is_absent_before_it_came_and_censored_before_it_went():
    there = Component(id="n00000", kind="node", from_ns=2 * HOUR_NS, until_ns=8 * HOUR_NS)
    came = judged(topology=[there])
    assert same(came, [NAN, NAN, 0, 0, 0, NAN, NAN, NAN, NAN, NAN])


@pytest.mark.parametrize("nodes", [1, 2])
def test_only_the_end_of_what_is_itself_watched_is_its_own(nodes):
    parts = [
        Component(id="rack", kind="rack", until_ns=4 * HOUR_NS),
        Component(id="unwatched", kind="switch", until_ns=4 * HOUR_NS),
    ]
    assert same(judged(topology=parts, nodes=nodes), judged(nodes=nodes))


@pytest.mark.parametrize("repaired_h", [8, 9, None])
def test_a_component_that_ends_with_its_failure_was_seen_to_its_end(repaired_h):
    there = Component(id="n00000", kind="node", until_ns=8 * HOUR_NS)
    came = judged([event("n00000", 8, repaired_h)], topology=[there])
    assert same(came, [0, 0, 0, 0, 0, 1, 1, 1, NAN, NAN])


def test_a_silent_component_is_not_judged():
    silent = [Silence(0, 6 * HOUR_NS, 8 * HOUR_NS)]
    came = judged([event("n00000", 7, 7)], silences=silent)
    assert same(came, [0, 0, 0, 0, 1, 1, NAN, NAN, 0, 0])
    found = judged([], of=task(3, kind="detect"), silences=silent)
    assert same(found, [0, 0, 0, 0, 0, 0, NAN, NAN, 0, 0])


def test_a_component_that_falls_silent_for_good_is_censored_unless_it_failed():
    silent = [Silence(0, 6 * HOUR_NS, 101 * HOUR_NS)]
    assert same(judged(silences=silent), [0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN])
    failed = judged([event("n00000", 5, 9)], silences=silent)
    assert same(failed, [0, 0, 1, 1, 1, NAN, NAN, NAN, NAN, NAN])
    as_known = judged(silences=[Silence(0, 6 * HOUR_NS, 8 * HOUR_NS)], known_h=7)
    assert same(as_known, [0, 0, 0, NAN, NAN, NAN, NAN, NAN, NAN, NAN])


def test_a_rack_event_touches_every_node_and_others_touch_only_theirs():
    came = judged([event("rack", 5, 5), event("n00001", 8, 8)], nodes=2)
    assert came[:, 0].tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]
    assert came[:, 1].tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]


def test_a_nonfatal_event_counts_only_if_its_kind_is_selected():
    mild = event("n00000", 5, 5, fatal=False, kind="slow")
    assert judged([mild]) == [0.0] * 10
    assert judged([mild], of=task(3, kinds=("slow",)))[2:5] == [1, 1, 1]


def test_a_detection_is_positive_while_the_incident_goes_on():
    of = task(3, kind="detect")
    mild = event("n00000", 2, 5, fatal=False)
    assert same(judged([mild], of=of, end_h=8), [0, 0, 1, 1, 1, 0, 0, 0, 0, NAN])


def test_a_detection_is_censored_only_by_absence_and_unknown_time():
    of = task(3, kind="detect")
    there = Component(id="n00000", kind="node", from_ns=HOUR_NS, until_ns=7 * HOUR_NS)
    doubtful = event("n00000", 4, 5, label="uncertain")
    late = event("n00000", 2, 3, known_h=6)
    drained = [drain("n00000", 6)]
    came = judged([doubtful, late], drained, of=of, topology=[there], known_h=8)
    assert same(came, [NAN, 0, 1, 0, NAN, 0, 0, NAN, NAN, NAN])
    assert judged([late], of=of, known_h=5)[:6] == [0.0] * 6


def test_events_closer_than_the_merge_time_are_one_incident():
    events = [event("n00000", 1, 2), event("n00000", 2.5, 3), event("n00000", 5, 6)]
    events.append(event("n00001", 2, 3))
    found = incidents(events, watched(2), task(3, merge_s=3600.0), known_until_ns=FOREVER_NS)
    assert found.row.tolist() == [0, 1, 0]
    assert (found.start_ns // HOUR_NS).tolist() == [1, 2, 5]
    assert (found.end_ns // HOUR_NS).tolist() == [3, 3, 6]


def test_an_alarm_of_a_forecast_is_due_before_the_lead_and_one_of_a_detection_while_it_goes_on():
    due_ns_span = task(4, lead_s=2 * 3600.0).due_ns(10 * HOUR_NS, 12 * HOUR_NS)
    assert due_ns_span == (6 * HOUR_NS, 8 * HOUR_NS)
    seen = task(4, lead_s=2 * 3600.0, kind="detect").due_ns(10 * HOUR_NS, 12 * HOUR_NS)
    assert seen == (10 * HOUR_NS, 12 * HOUR_NS)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"lead_s": 10.0}, "need 0 <= lead_s < horizon_s, was 10 and 10"),
        ({"lead_s": -1.0}, "need 0 <= lead_s < horizon_s, was -1 and 10"),
        ({"merge_s": -1.0}, "need merge_s and repair_s >= 0, was -1 and 86400"),
    ],
)
def test_a_task_that_makes_no_sense_is_refused(wrong, problem):
    with pytest.raises(TraceError) as caught:
        Task(horizon_s=10.0, repair_s=86_400.0, **wrong)
    assert str(caught.value) == problem


starts = st.lists(st.integers(0, 40), max_size=6)


@given(starts, st.integers(1, 8), st.integers(0, 7), st.integers(5, 45))
def test_outcomes_match_their_definition_sample_by_sample(at, horizon, lead, end):
    lead = min(lead, horizon - 1)
    events = [event("n00000", start, start, id=str(i)) for i, start in enumerate(at)]
    came = judged(events, of=task(horizon, lead_s=lead * 3600.0), count=45, end_h=end)
    for t, value in enumerate(came):
        ahead = [start - t for start in at if 0 < start - t <= horizon]
        if t + horizon > end or any(start <= lead for start in ahead):
            wanted = NAN
        else:
            wanted = float(bool(ahead))
        assert same(value, wanted), (t, at)


@given(starts, starts, st.integers(5, 40))
def test_nothing_that_is_available_later_changes_an_outcome(at, later, known):
    events = [event("n00000", start, start, id=str(i)) for i, start in enumerate(at)]
    more = [
        event("n00000", start, start, known_h=known + 1, id=f"l{i}")
        for i, start in enumerate(later)
    ]
    assert same(judged(events, known_h=known), judged(events + more, known_h=known))


@pytest.mark.parametrize(
    ("of", "shown"),
    [
        ({}, ["crash", "note"]),
        ({"kind": "detect"}, []),
        ({"kind": "detect", "kinds": ("note",)}, ["crash"]),
        ({"kinds": ("note",)}, ["crash", "note"]),
    ],
)
def test_target_events_are_hidden_only_from_a_detection(of, shown):
    events = [event("n00000", 5), event("n00000", 6, kind="note", fatal=False)]
    assert [one.kind for one in events if task(3, **of).shows(one)] == shown
