"""Who is there, in which state, and what faults are remembered."""

import pytest

from tests.kernel.runs import START_NS, hello, telemetry
from torchloom_core.clock import SECOND_NS
from torchloom_core.config import Costs
from torchloom_core.fleet.state import FleetState
from torchloom_core.messages import Drain, Exit, Note, SetKnob

DAY_NS = 86_400 * SECOND_NS


@pytest.fixture
def fleet() -> FleetState:
    fleet = FleetState((), tick_s=1.0, stale_after_s=10.0, costs=Costs())
    for worker in ("a-0", "a-1", "b-0"):
        fleet.register(hello(worker), START_NS)
    return fleet


def gone(worker: str, expected: bool = False) -> Exit:
    return Exit(run="run", worker=worker, incarnation=1, status=-9, expected=expected)


def hear(fleet: FleetState, worker: str, **changes: object) -> None:
    fleet.receive(telemetry(worker, **changes), START_NS)
    fleet.close_tick(START_NS)


def test_a_group_is_in_a_state_when_all_its_present_workers_are(fleet):
    assert fleet.groups("training") == {"a": [0, 1], "b": [2]}
    hear(fleet, "a-1", state="paused")
    assert fleet.groups("training") == {"b": [2]}
    assert fleet.groups("training", "paused") == {"a": [0, 1], "b": [2]}
    fleet.end(gone("a-1"), START_NS)
    assert fleet.groups("training") == {"a": [0], "b": [2]}


def test_what_has_ended_is_not_brought_back_by_late_telemetry(fleet):
    fleet.end(gone("a-0"), START_NS)
    hear(fleet, "a-0")
    assert fleet.state[0] == "gone"
    fleet.apply("b-0", Drain())
    hear(fleet, "b-0")
    assert fleet.state[2] == "left"
    fleet.register(hello("b-0", incarnation=2), START_NS)
    assert fleet.state[2] == "training"


def test_an_unexpected_exit_is_a_fault_and_an_expected_one_is_not(fleet):
    assert fleet.end(gone("a-0"), START_NS)
    assert not fleet.end(gone("a-0"), START_NS)
    assert fleet.end(gone("b-0", expected=True), START_NS)
    (fault,) = fleet.view(START_NS, {}).faults
    assert (fault.worker, fault.node, fault.kind) == ("a-0", "node-a", "exit")


def test_faults_are_remembered_for_a_day(fleet):
    note = Note(run="run", worker="a-0", incarnation=1, kind="hang")
    fleet.note(note, START_NS)
    fleet.note(Note(run="run", worker="a-0", incarnation=1, kind="quorum"), START_NS)
    fleet.note(Note(run="run", worker="nobody", incarnation=1, kind="hang"), START_NS)
    fleet.close_tick(START_NS + DAY_NS)
    assert len(fleet.view(START_NS, {}).faults) == 1
    fleet.close_tick(START_NS + DAY_NS + 1)
    assert fleet.view(START_NS, {}).faults == ()


def test_ages_count_from_what_was_heard_and_from_the_last_step(fleet):
    hear(fleet, "a-0", progress_age_s=4.0, step=7)
    view = fleet.view(START_NS + 2 * SECOND_NS, {})
    assert view.heartbeat_age_s[0] == 2.0
    assert view.progress_age_s[0] == 6.0
    assert list(view.step) == [7, -1, -1]


def test_an_applied_knob_is_seen_and_other_deeds_change_nothing(fleet):
    fleet.apply("a-0", SetKnob(knob="lr", value=0.7))
    assert fleet.view(START_NS, {}).knob("lr") == [0.7, 0.1, 0.1]


def test_the_knobs_of_those_that_ended_are_no_knobs(fleet):
    assert set(fleet.knob_specs()) == {"lr"}
    for worker in ("a-0", "a-1", "b-0"):
        fleet.end(gone(worker), START_NS)
    assert fleet.knob_specs() == {}
