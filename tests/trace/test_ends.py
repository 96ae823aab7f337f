"""A failure that ended a component is not over after a day."""

import pytest

from tests.trace.small import NODES, START_NS, bundle, fault, lines_of
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.feed.feed import Feed
from torchloom_core.lab.trace.feed.silences import events_with_ends
from torchloom_core.lab.trace.feed.watched import watch

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
