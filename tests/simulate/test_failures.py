"""Failures of a trace as hits of the fleet model."""

import pytest

from tests.trace.small import NODES, at, bundle, fault
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.simulate.failures import hits
from torchloom_core.lab.trace.bundle.schema import Component

FLEET = (*NODES, Component(id="c", kind="node"))


def found(path, events, *, unknown="component", start_s=0.0, end_s=60.0, repair_s=30.0):
    return hits(
        bundle(path / "small.tltrace", [*FLEET, *events]),
        unknown=unknown,
        start_ns=at(start_s),
        end_ns=at(end_s),
        repair_s=repair_s,
    )


def test_a_gpus_failure_strikes_its_node_until_it_is_resolved(tmp_path):
    [hit] = found(tmp_path, [fault(5, "a/gpu-1", follows="component", resolved_s=25)])
    assert (hit.ts_ns, hit.nodes, hit.repair_ns) == (at(5), ("a",), 20 * SECOND_NS)


def test_a_failure_with_an_unknown_end_takes_the_assumed_repair(tmp_path):
    [hit] = found(tmp_path, [fault(5, "a", follows="component")])
    assert hit.repair_ns == 30 * SECOND_NS


def test_a_repair_begins_with_the_failure_however_late_it_is_known(tmp_path):
    late = [
        fault(5, "a", avail_s=15, follows="component"),
        fault(7, "b", avail_s=15, follows="component", resolved_s=17),
    ]
    first, second = found(tmp_path, late)
    assert (first.ts_ns, first.repair_ns) == (at(5), 30 * SECOND_NS)
    assert (second.ts_ns, second.repair_ns) == (at(7), 10 * SECOND_NS)


def test_a_rack_strikes_all_its_nodes_at_once(tmp_path):
    [hit] = found(tmp_path, [fault(5, "r0", follows="fabric")])
    assert (hit.nodes, hit.follows) == (("a", "b"), "fabric")


def test_events_of_one_cause_are_one_failure(tmp_path):
    events = [
        fault(5, "r0", fatal=False, id="power"),
        fault(7, "b", cause="power", follows="component", resolved_s=10, id="second"),
        fault(6, "a", cause="power", follows="component", resolved_s=50, id="first"),
        fault(8, "c", cause="second", follows="component", resolved_s=9, id="third"),
    ]
    [hit] = found(tmp_path, events)
    assert (hit.id, hit.ts_ns, hit.nodes) == ("first", at(6), ("a", "b", "c"))
    assert hit.repair_ns == 44 * SECOND_NS


def test_causes_in_a_circle_come_to_an_end(tmp_path):
    events = [fault(5, "a", id="x", cause="y"), fault(6, "b", id="y", cause="x")]
    assert len(found(tmp_path, events)) == 2


def test_a_circle_of_causes_beyond_the_event_ends(tmp_path):
    events = [
        fault(5, "a", id="x", cause="y"),
        fault(6, "b", id="y", cause="x"),
        fault(7, "c", id="z", cause="x"),
    ]
    assert {hit.id for hit in found(tmp_path, events)} <= {"x", "y", "z"}


def test_a_failure_at_the_start_that_is_over_at_once_is_one(tmp_path):
    [hit] = found(tmp_path, [fault(5, "a", follows="component", resolved_s=5)], start_s=5)
    assert (hit.ts_ns, hit.repair_ns) == (at(5), 0)


@pytest.mark.parametrize(
    ("unknown", "nodes", "seen_on"), [("component", ("a",), ()), ("job", (), ("a",))]
)
def test_an_unknown_failure_follows_what_is_assumed(tmp_path, unknown, nodes, seen_on):
    [hit] = found(tmp_path, [fault(5, "a")], unknown=unknown)
    assert (hit.follows, hit.nodes, hit.seen_on) == (unknown, nodes, seen_on)


def test_nonfatal_outside_or_unwatched_events_are_no_failures(tmp_path):
    events = [
        fault(5, "a", fatal=False),
        fault(9, "a", id="early"),
        fault(50, "a", id="late"),
        fault(20, "nobody"),
    ]
    assert found(tmp_path, events, start_s=10, end_s=50) == []
