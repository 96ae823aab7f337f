"""What a knob should be is told again to whoever comes with another value."""

import pytest

from tests.kernel.runs import LR, Run, hello, make_kernel, of, only, three_groups
from torchloom_core.actions import ChangeKnob
from torchloom_core.decisions import Issue, KnobDesired, Verdict
from torchloom_core.messages import KnobSpec, SetKnob
from torchloom_core.requests import ForgetKnob, ResumeActions, StopActions


@pytest.fixture
def run() -> Run:
    run = Run(make_kernel(config="[arbiter]\ncooldown_s = 0"))
    run.feed(hello("a-0"))
    run.feed(hello("b-0"))
    return run


def set_knob(run: Run, value: float, worker: str | None = None) -> None:
    """Have everybody concerned apply a value."""
    for issue in of(Issue, run.ask(ChangeKnob(knob="lr", value=value, worker=worker))):
        run.ack(issue.command)


def told(run: Run, worker: str, **changes: object) -> list[SetKnob]:
    return [i.command.do for i in of(Issue, run.feed(hello(worker, **changes)))]


def test_a_worker_that_registers_again_gets_the_desired_value(run):
    set_knob(run, 0.5)
    assert told(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_a_worker_that_has_the_desired_value_is_told_nothing(run):
    set_knob(run, 0.5)
    assert told(run, "a-0", incarnation=2, values={"lr": 0.5}) == []


def test_a_worker_that_came_later_gets_the_desired_value(run):
    set_knob(run, 0.5)
    assert told(run, "c-0") == [SetKnob(knob="lr", value=0.5)]


def test_a_value_for_one_worker_comes_before_the_value_for_all(run):
    set_knob(run, 0.5)
    set_knob(run, 0.7, worker="a-0")
    assert told(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.7)]
    assert told(run, "b-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_a_value_for_all_replaces_the_values_for_single_workers(run):
    set_knob(run, 0.7, worker="a-0")
    set_knob(run, 0.5)
    assert told(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_no_second_command_is_sent_while_one_is_in_flight(run):
    run.ask(ChangeKnob(knob="lr", value=0.5))
    assert told(run, "a-0") == []
    assert len(told(run, "c-0")) == 1
    assert told(run, "c-0") == []


def test_a_worker_without_the_knob_is_told_nothing(run):
    set_knob(run, 0.5)
    assert told(run, "c-0", knobs=()) == []


def test_a_worker_that_has_ended_is_told_nothing_by_its_own_late_hello(run):
    set_knob(run, 0.5)
    run.exit("a-0")
    assert told(run, "a-0") == []


def test_the_kill_switch_holds_knobs_back_until_actions_are_resumed(run):
    set_knob(run, 0.5)
    run.want(StopActions())
    assert told(run, "a-0", incarnation=2) == []
    before = len(run.commands())
    run.want(ResumeActions())
    (command,) = run.commands()[before:]
    assert (command.worker, command.do) == ("a-0", SetKnob(knob="lr", value=0.5))


def test_a_refused_value_is_not_desired(run):
    outputs = run.ask(ChangeKnob(knob="lr", value=2.0))
    assert only(Verdict, outputs).reason == "knob lr: need at most 1, was 2.0"
    assert of(KnobDesired, outputs) == []
    assert run.kernel.desired.snapshot() == ()


def test_a_value_is_checked_by_the_range_of_the_worker_it_is_for(run):
    run.feed(hello("c-0", knobs=(KnobSpec(name="lr", kind="float", high=10.0),)))
    assert only(Verdict, run.ask(ChangeKnob(knob="lr", value=5, worker="c-0"))).granted
    verdict = only(Verdict, run.ask(ChangeKnob(knob="lr", value=5, worker="a-0")))
    assert verdict.reason == "knob lr: need at most 1, was 5.0"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"knob": "lt"}, "no knob is called 'lt'; there are lr"),
        ({"worker": "a-1"}, "no worker is called 'a-1'; did you mean a-0?"),
        ({"value": "fast"}, "knob lr: need a number, was 'fast'"),
        ({"value": True}, "knob lr: need a number, was True"),
    ],
)
def test_a_knob_that_cannot_be_set_is_refused_with_the_reason(run, changes, reason):
    fields = {"knob": "lr", "value": 0.5, **changes}
    assert only(Verdict, run.ask(ChangeKnob(**fields))).reason == reason


def test_a_run_fenced_knob_is_refused():
    run = Run(make_kernel())
    run.feed(hello("a-0", knobs=(KnobSpec(name="wire", kind="bool", fence="run"), LR)))
    verdict = only(Verdict, run.ask(ChangeKnob(knob="wire", value=True)))
    assert verdict.reason == "knob wire is run-fenced, which this version cannot switch"


def test_a_knob_whose_workers_are_all_leaving_is_refused(run):
    for worker in ("a-0", "b-0"):
        run.hear(worker, state="draining")
    verdict = only(Verdict, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert verdict.reason == "knob lr: every worker that has it is leaving"


def test_a_value_that_no_worker_applied_is_wanted_no_more():
    run = three_groups(make_kernel())
    run.ask(ChangeKnob(knob="lr", value=0.5))
    for command in run.commands():
        run.ack(command, "failed")
    assert run.kernel.control().desired == ()
    assert [d.value for d in run.all(KnobDesired)] == [0.5, None]


def test_a_value_that_one_worker_applied_stays_wanted():
    run = three_groups(make_kernel())
    run.ask(ChangeKnob(knob="lr", value=0.5))
    first, *others = run.commands()
    run.ack(first)
    for command in others:
        run.ack(command, "failed")
    assert [d.value for d in run.kernel.control().desired] == [0.5]


def test_a_wish_can_be_taken_back_with_no_worker_there_and_while_stopped():
    run = three_groups(make_kernel())
    run.ask(ChangeKnob(knob="lr", value=0.5))
    for command in run.commands():
        run.ack(command)
    run.want(StopActions())
    for group in "abc":
        run.exit(f"{group}-0")
    assert run.want(ForgetKnob(knob="lr")).ok
    assert not run.want(ForgetKnob(knob="lr")).ok
    assert run.kernel.control().desired == ()
    run.want(ResumeActions())
    issued = len(run.commands())
    run.feed(hello("a-0", incarnation=2))
    assert len(run.commands()) == issued
