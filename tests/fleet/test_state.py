"""Which workers are there, in which state, and which faults are remembered."""

import pytest

from tests.kernel.runs import LR, START_NS, hello, telemetry
from torchloom_core.config.schema import Costs
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.plugin import NeedNotes
from torchloom_core.wire.messages import Exit, Hello, KnobSpec, Note
from torchloom_core.wire.operations import Drain, Join, SetKnob

DAY_NS = 86_400 * SECOND_NS


@pytest.fixture
def fleet() -> FleetState:
    fleet = FleetState((), tick_s=1.0, stale_after_s=10.0, costs=Costs())
    for worker in ("a-0", "a-1", "b-0"):
        fleet.register(hello(worker), START_NS)
    return fleet


def gone(worker: str, expected: bool = False, incarnation: int = 1) -> Exit:
    return Exit(run="run", worker=worker, incarnation=incarnation, status=-9, expected=expected)


def hear(fleet: FleetState, worker: str, **changes: object) -> None:
    fleet.receive(telemetry(worker, **changes), START_NS)
    fleet.close_tick(START_NS)


def test_a_group_is_in_a_state_when_all_its_present_workers_are(fleet):
    assert fleet.standing.groups("training") == {"a": [0, 1], "b": [2]}
    hear(fleet, "a-1", state="paused")
    assert fleet.standing.groups("training") == {"b": [2]}
    assert fleet.standing.groups("training", "paused") == {"a": [0, 1], "b": [2]}
    fleet.end(gone("a-1"), START_NS)
    assert fleet.standing.groups("training") == {"a": [0], "b": [2]}


def test_what_has_ended_is_not_brought_back_by_late_telemetry(fleet):
    fleet.end(gone("a-0"), START_NS)
    hear(fleet, "a-0")
    assert fleet.state[0] == "gone"
    fleet.apply("b-0", Drain())
    hear(fleet, "b-0")
    assert fleet.state[2] == "left"
    fleet.register(hello("b-0", incarnation=2), START_NS)
    assert fleet.state[2] == "training"


def test_late_telemetry_does_not_make_a_joined_worker_a_standby(fleet):
    fleet.register(hello("s-0", state="standby"), START_NS)
    hear(fleet, "s-0", state="standby")
    assert fleet.state[3] == "standby"
    fleet.apply("s-0", Join())
    hear(fleet, "s-0", state="standby")
    assert fleet.state[3] == "joining"


def test_an_unexpected_exit_is_a_fault_and_an_expected_one_is_not(fleet):
    assert fleet.end(gone("a-0"), START_NS)
    assert not fleet.end(gone("a-0"), START_NS)
    assert fleet.end(gone("b-0", expected=True), START_NS)
    (fault,) = fleet.view(START_NS, {}).faults
    assert (fault.worker, fault.node, fault.kind) == ("a-0", "node-a", "exit")


def test_the_newest_note_of_a_declared_kind_is_stored_per_incarnation():
    needs = (NeedNotes(("dump",)),)
    fleet = FleetState(needs, tick_s=1.0, stale_after_s=10.0, costs=Costs())
    fleet.register(hello("a-0"), START_NS)
    for number, (kind, incarnation) in enumerate(
        (("dump", 1), ("dump", 1), ("other", 1), ("dump", 9))
    ):
        note = Note(run="run", worker="a-0", incarnation=incarnation, kind=kind, step=number)
        fleet.note(note, START_NS)
    view = fleet.view(START_NS, {})
    assert view.note("dump", 0).step == 1
    with pytest.raises(KeyError, match="other: need a NeedNotes of it in needs"):
        view.note("other", 0)
    fleet.end(gone("a-0"), START_NS)
    fleet.register(hello("a-0", incarnation=2), START_NS)
    assert fleet.view(START_NS, {}).note("dump", 0) is None


def test_faults_are_remembered_for_a_day(fleet):
    note = Note(run="run", worker="a-0", incarnation=1, kind="hang")
    fleet.note(note, START_NS)
    fleet.note(Note(run="run", worker="a-0", incarnation=1, kind="quorum"), START_NS)
    fleet.note(Note(run="run", worker="nobody", incarnation=1, kind="hang"), START_NS)
    fleet.note(Note(run="run", worker="a-0", incarnation=2, kind="hang", ts_ns=1), START_NS)
    fleet.close_tick(START_NS + DAY_NS)
    assert len(fleet.view(START_NS, {}).faults) == 1
    fleet.close_tick(START_NS + DAY_NS + 1)
    assert fleet.view(START_NS, {}).faults == ()


def test_ages_count_from_the_last_report_and_from_the_last_step(fleet):
    hear(fleet, "a-0", progress_age_s=4.0, step=7)
    view = fleet.view(START_NS + 2 * SECOND_NS, {})
    assert view.heartbeat_age_s[0] == 2.0
    assert view.progress_age_s[0] == 6.0
    assert list(view.step) == [7, -1, -1]


def test_an_applied_knob_is_seen_and_other_operations_change_nothing(fleet):
    fleet.apply("a-0", SetKnob(knob="lr", value=0.7))
    assert fleet.view(START_NS, {}).knob("lr") == [0.7, 0.1, 0.1]


def test_the_knobs_of_those_that_ended_are_no_knobs(fleet):
    assert set(fleet.knob_specs) == {"lr"}
    for worker in ("a-0", "a-1", "b-0"):
        fleet.end(gone(worker), START_NS)
    assert fleet.knob_specs == {}


def declaring(worker: str, *knobs: KnobSpec, **changes: object) -> Hello:
    return hello(worker, knobs=knobs, **changes)


def test_a_knob_is_for_all_what_most_workers_present_declare_it_to_be(fleet):
    odd = KnobSpec(name="lr", kind="choice", choices=("low", "high"))
    fleet.register(declaring("b-0", odd), START_NS)
    assert fleet.knob_specs == {"lr": LR}
    fleet.end(gone("a-0"), START_NS)
    assert fleet.knob_specs == {"lr": LR}
    fleet.end(gone("a-1"), START_NS)
    assert fleet.knob_specs == {"lr": odd}
    fleet.register(hello("a-0", incarnation=2), START_NS)
    fleet.register(hello("a-1", incarnation=2), START_NS)
    assert fleet.knob_specs == {"lr": LR}


def test_of_as_many_declarations_of_a_knob_the_first_one_counts():
    fleet = FleetState((), tick_s=1.0, stale_after_s=10.0, costs=Costs())
    wide = KnobSpec(name="lr", kind="float", low=0.0, high=100.0)
    fleet.register(declaring("a-0", LR), START_NS)
    fleet.register(declaring("b-0", wide), START_NS)
    assert fleet.knob_specs == {"lr": LR}
    fleet.register(declaring("b-0", wide), START_NS)
    assert fleet.knob_specs == {"lr": LR}
    fleet.register(declaring("c-0", wide), START_NS)
    assert fleet.knob_specs == {"lr": wide}


def test_a_view_and_its_reader_cannot_spoil_what_knobs_there_are(fleet):
    fleet.view_copy(START_NS, ()).knob_specs.clear()
    assert fleet.knob_specs == {"lr": LR}


def is_here(fleet: FleetState, worker: str, incarnation: int, after_s: float = 0.0) -> bool:
    """Send a hello, and return whether this incarnation is then the known one."""
    when_ns = START_NS + round(after_s * SECOND_NS)
    fleet.register(hello(worker, incarnation=incarnation), when_ns)
    return fleet.is_registered(worker, incarnation) and not fleet.is_over(fleet.row_of[worker])


def test_a_worker_that_comes_back_by_a_clock_an_hour_back_is_there_again(fleet):
    assert is_here(fleet, "a-0", 7_200_000)
    fleet.end(gone("a-0", incarnation=7_200_000), START_NS)
    assert is_here(fleet, "a-0", 3_600_000)
    assert not is_here(fleet, "a-0", 7_200_000)
    assert fleet.is_registered("a-0", 3_600_000)


def test_a_smaller_incarnation_takes_over_from_one_that_fell_silent_and_not_before(fleet):
    assert is_here(fleet, "a-0", 9)
    assert not is_here(fleet, "a-0", 3, after_s=10.0)
    assert is_here(fleet, "a-0", 3, after_s=10.5)
    assert not is_here(fleet, "a-0", 9, after_s=10.6)


def test_the_greatest_incarnation_there_can_be_does_not_burn_a_name(fleet):
    assert is_here(fleet, "a-0", 2**63 - 1)
    assert not is_here(fleet, "a-0", 1, after_s=5.0)
    assert is_here(fleet, "a-0", 1, after_s=10.5)


def test_an_ended_incarnation_does_not_come_back_by_a_late_hello(fleet):
    fleet.end(gone("a-0"), START_NS)
    assert is_here(fleet, "a-0", 5)
    assert not is_here(fleet, "a-0", 1, after_s=60.0)
    fleet.end(gone("b-0", incarnation=8), START_NS)
    assert not is_here(fleet, "b-0", 8, after_s=60.0)


def test_an_unknown_incarnation_needs_a_hello_but_an_ended_one_does_not(fleet):
    def strangers(incarnation: int, after_s: float) -> list[str]:
        when_ns = START_NS + round(after_s * SECOND_NS)
        fleet.receive(telemetry("a-0", incarnation=incarnation), when_ns)
        return fleet.close_tick(when_ns)

    assert strangers(-5, after_s=1.0) == []
    assert strangers(-5, after_s=11.0) == ["a-0"]
    fleet.end(gone("a-0", incarnation=-5), START_NS)
    assert strangers(-5, after_s=12.0) == []


def test_the_number_of_remembered_incarnations_is_limited(fleet):
    for incarnation in range(2, 1000):
        assert is_here(fleet, "a-0", incarnation)
    assert sum(map(len, fleet._incarnations._past.values())) <= 16
