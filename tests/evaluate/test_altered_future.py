"""Data available by a given time is unchanged, and all later data is altered."""

import numpy as np
import pytest

from tests.evaluate.traces import HOUR_NS, drain, event, write_bundle
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture

AFTER_NS = 30 * HOUR_NS

EARLY = event("n00000", 10, 20)
GOES_ON = event("n00000", 25, 40)
JUST_TOLD = event("n00001", 29, known_h=30)
TOLD_LATER = event("n00002", 28, 29, known_h=31)
LATER = event("n00001", 50, 60, fatal=False)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Four days of three nodes, whose heat is never twice the same."""
    heat = np.random.default_rng(0).random((4, 3))
    path = tmp_path_factory.mktemp("traces") / "t.tltrace"
    whole = write_bundle(path, days=4, nodes=3, rate=0.0, metrics={"heat": lambda _: heat})[0]
    whole.events = lambda: (EARLY, GOES_ON, TOLD_LATER, JUST_TOLD, LATER)
    whole.actions = lambda: (drain("n00000", 5), drain("n00001", 30), drain("n00002", 31))
    return whole


def events_of(bundle, after_ns=AFTER_NS):
    return {one.id: one for one in OtherFuture(bundle, after_ns).events()}


def test_past_events_stay_and_later_ends_are_altered(bundle):
    found = events_of(bundle)
    assert found[EARLY.id] == EARLY
    assert found[JUST_TOLD.id] == JUST_TOLD
    assert found[GOES_ON.id].t_resolved > GOES_ON.t_resolved
    assert found[GOES_ON.id].t_event == found[GOES_ON.id].t_avail == GOES_ON.t_event
    ends_now = events_of(bundle, GOES_ON.t_resolved)
    assert ends_now[GOES_ON.id] == GOES_ON


def test_events_available_later_happen_later_with_another_kind(bundle):
    found = events_of(bundle)
    for was in (TOLD_LATER, LATER):
        now = found[was.id]
        at_ns = max(was.t_event, AFTER_NS) + 977 * SECOND_NS
        assert (now.t_event, now.t_avail, now.t_resolved) == (at_ns, at_ns, None)
        assert (now.kind, now.fatal) == ("other_future", not was.fatal)


def test_each_component_that_ever_failed_fails_at_once_and_events_stay_in_order(bundle):
    whole = OtherFuture(bundle, AFTER_NS).events()
    again = [one for one in whole if one.id.startswith("other_future/")]
    assert [one.component for one in again] == ["n00000", "n00001", "n00002"]
    assert {(one.t_event, one.t_avail) for one in again} == {(AFTER_NS + 1, AFTER_NS + 1)}
    assert all(one.fatal for one in again)
    assert {one.kind for one in again} == {"other_future"}
    assert len(whole) == 5 + 3
    assert [one.t_event for one in whole] == sorted(one.t_event for one in whole)


@pytest.mark.parametrize(("after_h", "events"), [(95, 8), (96, 5)])
def test_nothing_is_added_beyond_the_end_of_the_trace(bundle, after_h, events):
    assert len(events_of(bundle, after_h * HOUR_NS)) == events


def test_nothing_is_done_about_it(bundle):
    done = OtherFuture(bundle, AFTER_NS).actions()
    assert [one.component for one in done] == ["n00000", "n00001"]


def test_every_later_value_is_another_and_no_earlier_one(bundle):
    after_ns = 48 * HOUR_NS
    (was,) = bundle.telemetry()
    (now,) = OtherFuture(bundle, after_ns).telemetry()
    assert now.column_names == was.column_names
    early = was["t_avail"].to_numpy() <= after_ns
    assert 0 < early.sum() < len(early)
    differs = was["value"].to_numpy() != now["value"].to_numpy()
    assert np.array_equal(differs, ~early)
    assert np.isfinite(now["value"].to_numpy()).all()
    assert len(np.unique(now["value"].to_numpy())) == len(early)
    assert now["t_avail"].equals(was["t_avail"])


def test_only_the_requested_telemetry_is_read(bundle):
    other = OtherFuture(bundle, AFTER_NS)
    (part,) = other.telemetry(24 * HOUR_NS, 72 * HOUR_NS, ["heat"])
    (wanted,) = bundle.telemetry(24 * HOUR_NS, 72 * HOUR_NS, ["heat"])
    assert part["t_event"].equals(wanted["t_event"])
    assert sum(map(len, other.telemetry(metrics=["cold"]))) == 0
    assert 0 < len(part) < sum(map(len, other.telemetry()))
