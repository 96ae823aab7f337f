"""The state of a component that has not reported for long is unknown, not healthy."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.small import NODES, START_NS, at, bundle, fault, lines_of
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.fitting.time_split import EarlierPart
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.feed.silences import events_with_ends, silences
from torchloom_core.lab.trace.feed.watched import watch

DAY_S = 86_400
DAYS = 60


def reports(days_of, *, every_d=1.0):
    """Return telemetry of components by the days on which they report."""
    return [
        (day * every_d * DAY_S, name, "x", 1.0) for name, days in days_of.items() for day in days
    ]


def silent(path, samples, *parts, known_d=DAYS):
    """Return the silences, as ``name: from to until``, in days since the start."""
    listed = {part.id: part for part in parts}
    names = sorted({sample[1] for sample in samples})
    rows = [listed.get(name, Component(id=name, kind="node")) for name in names]
    trace = bundle(path, rows, samples, seconds=DAYS * DAY_S)
    found = silences(trace, watch(trace), known_until_ns=at(known_d * DAY_S))
    return [
        (names[row], *(round((ns - START_NS) / SECOND_NS / DAY_S, 1) for ns in edges))
        for row, *edges in found
    ]


def test_a_component_that_stops_reporting_is_silent_from_the_second_missed_report_on(tmp_path):
    days = {"a": range(DAYS), "b": range(40)}
    assert silent(tmp_path / "t", reports(days)) == [("b", 41.0, 60.0)]


def test_ten_reports_that_are_missing_at_the_end_are_no_silence_yet_and_eleven_are(tmp_path):
    days = {"a": range(DAYS), "b": range(50), "c": range(49)}
    assert silent(tmp_path / "t", reports(days)) == [("c", 50.0, 60.0)]


def test_a_component_is_silent_only_if_it_had_reported_for_long(tmp_path):
    days = {"a": range(DAYS), "few": range(5), "twice": (0, 20), "z": range(DAYS)}
    assert silent(tmp_path / "t", reports(days)) == [("few", 6.0, 60.0)]


def test_a_long_absence_is_a_silence_and_ten_missed_reports_are_not(tmp_path):
    days = {
        "a": range(DAYS),
        "came": range(30, DAYS),
        "away": (*range(10), *range(31, DAYS)),
        "briefly": (*range(10), *range(19, DAYS)),
    }
    assert silent(tmp_path / "t", reports(days)) == [("away", 11.0, 31.0), ("came", 2.0, 30.0)]


def test_a_silence_begins_a_day_after_the_last_report_at_the_earliest(tmp_path):
    hours = {"a": range(24 * DAYS), "b": (*range(240), *range(480, 24 * DAYS)), "c": range(1419)}
    found = silent(tmp_path / "t", reports(hours, every_d=1 / 24))
    assert found == [("b", 10.9, 20.0)]  # the last of c was 21 hours before the end


def test_no_component_is_silent_while_all_telemetry_is_missing(tmp_path):
    days = (*range(10), *range(40, 50))
    assert silent(tmp_path / "t", reports({"a": days, "b": days})) == []


def test_time_outside_the_topologys_span_is_no_silence(tmp_path):
    days = {"a": range(DAYS), "came": range(30, DAYS), "went": range(30)}
    came = Component(id="came", kind="node", from_ns=at(29 * DAY_S))
    went = Component(id="went", kind="node", until_ns=at(31 * DAY_S))
    assert silent(tmp_path / "t", reports(days), came, went) == []
    long_gone = Component(id="went", kind="node", until_ns=at(55 * DAY_S))
    assert silent(tmp_path / "u", reports(days), came, long_gone) == [("went", 31.0, 55.0)]


def test_a_component_that_reports_only_changes_is_not_silent(tmp_path):
    random = np.random.default_rng(0)
    days = {f"d{i}": {0, *random.integers(0, DAYS, 3).tolist()} for i in range(40)}
    # Counters that move daily once they have begun to, of a few.
    days |= {f"e{i}": {0, *range(i, i + 20)} for i in range(1, 9)}
    assert silent(tmp_path / "t", reports(days)) == []


def test_a_component_that_reports_rarely_is_not_silent(tmp_path):
    days = {"a": range(DAYS), "b": range(DAYS), "now and then": range(0, 56, 14), "z": range(DAYS)}
    assert silent(tmp_path / "t", reports(days)) == []


def test_a_node_reports_by_its_gpus(tmp_path):
    parts = [
        *(Component(id=name, kind="node") for name in "ab"),
        *(Component(id=f"b/{i}", kind="gpu", parents=("b",)) for i in range(2)),
    ]
    days = {"a": range(DAYS), "b/0": range(30), "b/1": range(30, 45)}
    trace = bundle(tmp_path / "t", parts, reports(days), seconds=DAYS * DAY_S)
    (found,) = silences(trace, watch(trace), known_until_ns=at(DAYS * DAY_S))
    assert found == (
        1,
        START_NS // 3600 // SECOND_NS * 3600 * SECOND_NS + 46 * DAY_S * SECOND_NS,
        at(DAYS * DAY_S) + 1,
    )


def test_a_rack_that_reports_is_no_sign_of_its_nodes(tmp_path):
    parts = [Component(id="r", kind="rack")]
    parts += [Component(id=name, kind="node", parents=("r",)) for name in "abc"]
    days = {"a": range(30), "b": range(30), "c": range(DAYS), "r": range(DAYS)}
    trace = bundle(tmp_path / "t", parts, reports(days), seconds=DAYS * DAY_S)
    found = silences(trace, watch(trace), known_until_ns=at(DAYS * DAY_S))
    assert [silence.row for silence in found] == [0, 1]


def test_a_silence_that_is_not_known_yet_is_none(tmp_path):
    samples = reports({"a": range(DAYS), "b": range(40)})
    assert silent(tmp_path / "t", samples, known_d=50) == []
    assert silent(tmp_path / "u", samples, known_d=53) == [("b", 41.0, 60.0)]


def test_a_trace_without_telemetry_has_no_silence(tmp_path):
    trace = bundle(tmp_path / "t", [Component(id="a", kind="node")])
    assert silences(trace, watch(trace), known_until_ns=at(60)) == ()


@given(
    st.integers(0, 99),
    st.lists(st.sampled_from([0.02, 0.5, 1.0]), min_size=2, max_size=5),
    st.integers(0, 2),
    st.integers(1, DAYS),
)
def test_no_silence_contains_a_report_or_depends_on_later_reports(seed, shares, gone, known_d):
    random = np.random.default_rng(seed)
    days = {
        f"n{i}": sorted({*np.flatnonzero(random.random(DAYS) < share).tolist(), i})
        for i, share in enumerate(shares)
    }
    for i in range(gone):
        days[f"n{i}"] = [day for day in days[f"n{i}"] if day < 25] or [i]
    known_ns = at(known_d * DAY_S)
    samples = reports(days)
    with tempfile.TemporaryDirectory() as folder:
        trace = bundle(Path(folder) / "t", (), samples, seconds=DAYS * DAY_S)
        watched = watch(trace)
        found = silences(trace, watched, known_until_ns=known_ns)
        early = silences(
            EarlierPart(trace, known_ns), watched, known_until_ns=trace.manifest.end_ns
        )
    assert [one[:2] for one in found] == [one[:2] for one in early]
    for row, from_ns, until_ns in found:
        own = [at(day * DAY_S) for day in days[watched.ids[row]] if at(day * DAY_S) < known_ns]
        assert not any(from_ns <= ns < until_ns - 3600 * SECOND_NS for ns in own)


DISKS = (Component(id="a", kind="disk"), Component(id="b", kind="disk"))


def ends(trace, repair_s=10.0):
    """Return when each failure was over, seconds after the start, None where it is unknown."""
    return [
        event.t_resolved and (event.t_resolved - START_NS) // SECOND_NS
        for event in events_with_ends(trace, watch(trace), repair_s)
    ]


def scrapes(component, *moments_s):
    return [(moment_s, component, "temp", 50.0) for moment_s in moments_s]


def test_what_reports_again_is_back_then_and_what_never_does_is_gone_for_good(tmp_path):
    rows = [*NODES, fault(5, "a"), fault(7, "b")]
    seen = [*scrapes("a", 1, 5, 12, 33, 40), *scrapes("b", 1, 7, 16)]
    trace = bundle(tmp_path / "t.tltrace", rows, seen)
    assert ends(trace) == [33, 60]
    assert ends(trace, repair_s=6.0) == [12, 16]
    lines = [line for line in lines_of(Feed(trace, tick_s=5, repair_s=10.0)) if line[1] != "fault"]
    assert lines[2:] == [(5, "fails", "a", 1), (7, "fails", "b", 1), (33, "hello", "a", 2)]


def test_a_node_whose_gpu_failed_is_back_once_anything_of_it_reports(tmp_path):
    rows = [*NODES, fault(5, "a/gpu-0")]
    trace = bundle(tmp_path / "t.tltrace", rows, scrapes("a/gpu-1", 4, 30))
    assert ends(trace) == [30]


def test_a_disk_does_not_come_back_unless_it_reports(tmp_path):
    failed = bundle(tmp_path / "failed.tltrace", [*DISKS, fault(5)])
    assert ends(failed) == [60]
    again = bundle(tmp_path / "again.tltrace", [*DISKS, fault(5), fault(41, fatal=False)])
    assert ends(again) == [41, None]
    repaired = bundle(tmp_path / "repaired.tltrace", [*DISKS, fault(5, resolved_s=20)])
    assert ends(repaired) == [20]


@pytest.mark.parametrize(
    "event",
    [fault(5, fatal=False), fault(5, follows="job"), fault(5, "r0"), fault(5, resolved_s=8)],
    ids=["no failure", "of the job", "of several nodes", "resolved"],
)
def test_of_anything_else_the_end_stays_as_it_is(tmp_path, event):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, event], scrapes("a", 1, 2))
    assert events_with_ends(trace, watch(trace), 10.0) == trace.events()


def test_nodes_without_telemetry_are_away_for_as_long_as_is_assumed(tmp_path):
    trace = bundle(tmp_path / "t.tltrace", [*NODES, fault(5)], scrapes("b", 1, 50))
    assert ends(trace) == [None]
