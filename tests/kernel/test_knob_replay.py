"""A desired value is set again on each worker that registers with another value."""

import pytest

from tests.kernel.runs import LR, Run, hello, make_kernel, of, only, three_groups
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Issue, KnobDesired, Outcome, Verdict, Withdrawal
from torchloom_core.wire.events import Recovered
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import SetKnob
from torchloom_core.wire.requests import ForgetKnob, ResumeActions, StopActions


@pytest.fixture
def run() -> Run:
    run = Run(make_kernel(config="[arbiter]\ncooldown_s = 0"))
    run.feed(hello("a-0"))
    run.feed(hello("b-0"))
    return run


def set_knob(run: Run, value: float, worker: str | None = None) -> None:
    """Apply a value on all its workers."""
    for issue in of(Issue, run.ask(ChangeKnob(knob="lr", value=value, worker=worker))):
        run.ack(issue.command)


def sent(run: Run, worker: str, **changes: object) -> list[SetKnob]:
    return [i.command.do for i in of(Issue, run.feed(hello(worker, **changes)))]


def test_a_worker_that_registers_again_gets_the_desired_value(run):
    set_knob(run, 0.5)
    assert sent(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_a_worker_with_the_desired_value_gets_no_command(run):
    set_knob(run, 0.5)
    assert sent(run, "a-0", incarnation=2, values={"lr": 0.5}) == []


def test_a_worker_that_came_later_gets_the_desired_value(run):
    set_knob(run, 0.5)
    assert sent(run, "c-0") == [SetKnob(knob="lr", value=0.5)]


def test_a_value_for_one_worker_comes_before_the_value_for_all(run):
    set_knob(run, 0.5)
    set_knob(run, 0.7, worker="a-0")
    assert sent(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.7)]
    assert sent(run, "b-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_a_value_for_all_replaces_the_values_for_single_workers(run):
    set_knob(run, 0.7, worker="a-0")
    set_knob(run, 0.5)
    assert sent(run, "a-0", incarnation=2) == [SetKnob(knob="lr", value=0.5)]


def test_no_second_command_is_sent_while_one_is_in_flight(run):
    run.ask(ChangeKnob(knob="lr", value=0.5))
    assert sent(run, "a-0") == []
    assert len(sent(run, "c-0")) == 1
    assert sent(run, "c-0") == []


def test_a_worker_without_the_knob_gets_no_command(run):
    set_knob(run, 0.5)
    assert sent(run, "c-0", knobs=()) == []


def test_a_late_hello_of_an_ended_worker_sends_no_command(run):
    set_knob(run, 0.5)
    run.exit("a-0")
    assert sent(run, "a-0") == []


def test_the_kill_switch_delays_knobs_until_actions_are_resumed(run):
    set_knob(run, 0.5)
    run.want(StopActions())
    assert sent(run, "a-0", incarnation=2) == []
    before = len(run.commands())
    run.want(ResumeActions())
    (command,) = run.commands()[before:]
    assert (command.worker, command.do) == ("a-0", SetKnob(knob="lr", value=0.5))


def test_an_ended_worker_does_not_block_commands_to_the_others(run):
    set_knob(run, 0.5)
    run.want(StopActions())
    run.exit("a-0")
    run.feed(hello("b-0", incarnation=2))
    before = len(run.commands())
    run.want(ResumeActions())
    (command,) = run.commands()[before:]
    assert (command.worker, command.cause) == ("b-0", "reconcile")


def test_a_refused_value_is_not_desired(run):
    outputs = run.ask(ChangeKnob(knob="lr", value=2.0))
    assert only(Verdict, outputs).reason == "knob lr: need at most 1, was 2.0"
    assert of(KnobDesired, outputs) == []
    assert run.kernel.run.desired.snapshot() == ()


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
def test_an_impossible_knob_change_is_denied_with_the_reason(run, changes, reason):
    fields = {"knob": "lr", "value": 0.5, **changes}
    assert only(Verdict, run.ask(ChangeKnob(**fields))).reason == reason


def test_a_run_fenced_knob_is_denied_if_a_worker_cannot_agree():
    run = Run(make_kernel())
    run.feed(hello("a-0", knobs=(KnobSpec(name="wire", kind="bool", fence="run"), LR)))
    verdict = only(Verdict, run.ask(ChangeKnob(knob="wire", value=True)))
    assert verdict.reason == (
        "knob wire needs all ranks to agree on a step: a-0 cannot, "
        "attach with torchloom_threadlet.torchft or .torchrun"
    )


def test_a_knob_whose_workers_are_all_leaving_is_refused(run):
    run.report("a-0", state="draining")
    run.report("b-0", state="left")
    verdict = only(Verdict, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert verdict.reason == "knob lr: every worker that has it is leaving"


def test_a_value_that_no_worker_applied_is_not_desired():
    run = three_groups(make_kernel())
    run.ask(ChangeKnob(knob="lr", value=0.5))
    for command in run.commands():
        run.ack(command, "failed")
    assert run.kernel.control().desired == ()
    assert [d.value for d in run.all(KnobDesired)] == [0.5, None]


def test_a_value_that_one_worker_applied_stays_desired():
    run = three_groups(make_kernel())
    run.ask(ChangeKnob(knob="lr", value=0.5))
    first, *others = run.commands()
    run.ack(first)
    for command in others:
        run.ack(command, "failed")
    assert [d.value for d in run.kernel.control().desired] == [0.5]


def test_a_desired_value_can_be_dropped_without_workers_and_while_stopped():
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


ODD = KnobSpec(name="lr", kind="choice", choices=("low", "high"))


def test_a_worker_with_a_different_spec_is_left_out_and_named(run):
    run.feed(hello("c-0", knobs=(ODD,), values={"lr": "low"}))
    issued = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert [issue.command.worker for issue in issued] == ["a-0", "b-0"]
    for issue in issued:
        run.ack(issue.command)
    outcome = run.all(Outcome)[-1]
    assert outcome.detail == "lr = 0.5 on 2 workers, not on c-0, which declares it differently"
    assert sent(run, "c-0", knobs=(ODD,), values={"lr": "low"}) == []


def test_a_refused_value_names_the_worker_with_a_different_spec(run):
    for worker in ("c-0", "d-0", "e-0", "f-0"):
        run.feed(hello(worker, knobs=(LR, KnobSpec(name="mine", kind="bool"))))
    run.feed(hello("x-0", knobs=(ODD,), values={"lr": "low"}))
    verdict = only(Verdict, run.ask(ChangeKnob(knob="lr", value="low")))
    assert verdict.reason == (
        "knob lr: need a number, was 'low'; not on x-0, which declares it differently"
    )


def test_a_knob_with_a_different_spec_can_be_set_on_its_own_worker(run):
    run.feed(hello("c-0", knobs=(ODD,), values={"lr": "low"}))
    (issue,) = of(Issue, run.ask(ChangeKnob(knob="lr", value="high", worker="c-0")))
    assert issue.command.do == SetKnob(knob="lr", value="high")


def lr(value: float, worker: str | None = None) -> ChangeKnob:
    return ChangeKnob(knob="lr", value=value, worker=worker)


def test_a_newer_value_supersedes_one_in_flight_which_is_withdrawn_first(run):
    first, second = of(Issue, run.ask(lr(0.5)))
    run.ack(first.command)
    outputs = run.ask(lr(0.6))
    assert only(Verdict, outputs).granted
    assert only(Withdrawal, outputs).command == second.command.id
    assert [type(o) for o in outputs if isinstance(o, Withdrawal | Issue)] == [
        Withdrawal,
        Issue,
        Issue,
    ]
    ended = only(Outcome, outputs)
    assert (ended.verdict, ended.result) == ("p1.1", "partial")
    assert ended.detail == f"{second.command.id} superseded by p1.2"
    assert run.kernel.run.desired.values("lr") == [0.6]


def test_a_knob_can_be_set_repeatedly_while_a_sidecar_is_down(run):
    for number in range(14):
        issued = of(Issue, run.ask(lr(0.2 + 0.01 * number)))
        assert [issue.command.worker for issue in issued] == ["a-0", "b-0"]
        run.ack(issued[0].command)
    run.ack(issued[1].command)
    assert run.all(Outcome)[-1].result == "done"
    assert len(run.kernel.run.plans.table) == 0


def test_an_undelivered_superseded_value_does_not_drop_the_newer_one(run):
    run.ask(lr(0.5))
    run.ask(lr(0.5))
    assert [outcome.result for outcome in run.all(Outcome)] == ["undone"]
    assert run.kernel.run.desired.values("lr") == [0.5]


def test_an_old_value_that_is_applied_late_is_corrected(run):
    old, _ = of(Issue, run.ask(lr(0.5)))
    new, _ = of(Issue, run.ask(lr(0.6)))
    run.ack(new.command)
    (issue,) = of(Issue, run.ack(old.command))
    assert (issue.command.worker, issue.command.do) == ("a-0", SetKnob(knob="lr", value=0.6))
    assert of(Issue, run.ack(issue.command)) == []


def test_a_value_for_one_worker_supersedes_the_one_for_all_on_that_worker_alone(run):
    _, for_b = of(Issue, run.ask(lr(0.5)))
    outputs = run.ask(lr(0.6, worker="a-0"))
    assert [issue.command.worker for issue in of(Issue, outputs)] == ["a-0"]
    assert of(Outcome, outputs) == []
    ended = only(Outcome, run.ack(for_b.command))
    assert (ended.result, ended.detail) == ("partial", "c1.1 superseded by p1.2")
    assert run.kernel.run.desired.values("lr") == [0.5, 0.6]
    (for_a,) = of(Issue, outputs)
    assert only(Outcome, run.ack(for_a.command)).verdict == "p1.2"


def test_a_rejected_value_is_not_sent_again_at_other_acks(run):
    for_a, for_b = of(Issue, run.ask(lr(0.5)))
    run.ack(for_a.command, "rejected")
    run.ack(for_b.command)
    for issue in of(Issue, run.ask(SaveCheckpoint())):
        assert of(Issue, run.ack(issue.command)) == []


def test_superseded_commands_stay_superseded_after_a_restart(run):
    run.ask(lr(0.5))
    run.ask(lr(0.6, worker="a-0"))
    control = run.kernel.control()
    again = Run(make_kernel(), epoch=2)
    outputs = again.feed(Recovered(epoch=2, control=control))
    assert [o.worker for o in outputs if isinstance(o, Withdrawal)] == ["a-0"]
    assert isinstance(outputs[0], Withdrawal)
    for_b = next(o.command for o in of(Issue, outputs) if o.command.worker == "b-0")
    for worker in ("a-0", "b-0"):
        again.feed(hello(worker))
    ended = only(Outcome, again.ack(for_b))
    assert ended.detail == "c1.1 superseded by p1.2"


TWO = (LR, KnobSpec(name="wd", kind="float", low=0.0, high=1.0))


def desired_values(run: Run) -> list[tuple[str, object, str | None]]:
    return [(one.knob, one.value, one.worker) for one in run.kernel.control().desired]


@pytest.fixture
def two_knobs(run: Run) -> Run:
    """A run with desired values for all and for one worker, of two knobs."""
    for worker in ("a-0", "b-0"):
        run.feed(hello(worker, knobs=TWO, values={"lr": 0.1, "wd": 0.1}))
    for knob in ("lr", "wd"):
        for worker in (None, "a-0", "b-0"):
            for issue in of(Issue, run.ask(ChangeKnob(knob=knob, value=0.5, worker=worker))):
                run.ack(issue.command)
    return run


def test_dropping_one_workers_value_leaves_the_others(two_knobs):
    assert two_knobs.want(ForgetKnob(knob="lr", worker="a-0")).ok
    assert two_knobs.all(KnobDesired)[-1] == KnobDesired(knob="lr", value=None, worker="a-0")
    assert desired_values(two_knobs) == [
        ("lr", 0.5, None),
        ("lr", 0.5, "b-0"),
        ("wd", 0.5, None),
        ("wd", 0.5, "a-0"),
        ("wd", 0.5, "b-0"),
    ]


def test_dropping_a_knob_drops_its_values_of_all_workers(two_knobs):
    assert two_knobs.want(ForgetKnob(knob="lr")).ok
    assert [(d.knob, d.worker) for d in two_knobs.all(KnobDesired) if d.value is None] == [
        ("lr", None),
        ("lr", "a-0"),
        ("lr", "b-0"),
    ]
    assert {knob for knob, *_ in desired_values(two_knobs)} == {"wd"}


def test_a_value_that_its_worker_did_not_apply_is_dropped_for_that_worker(run):
    set_knob(run, 0.5)
    (issue,) = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.7, worker="a-0")))
    run.ack(issue.command, "failed")
    assert run.all(KnobDesired)[-1] == KnobDesired(knob="lr", value=None, worker="a-0")
    assert desired_values(run) == [("lr", 0.5, None)]
    assert [key for key in run.stored if key.startswith("knob.")] == ["knob.all.lr"]


def test_a_value_dropped_while_in_flight_is_dropped_once(run):
    issued = of(Issue, run.ask(ChangeKnob(knob="lr", value=0.5)))
    assert run.want(ForgetKnob(knob="lr")).ok
    for issue in issued:
        run.ack(issue.command, "failed")
    assert run.all(Outcome)[-1].result == "undone"
    assert [one.value for one in run.all(KnobDesired)] == [0.5, None]


def test_a_successor_sets_a_single_workers_value_on_that_worker_only(run):
    set_knob(run, 0.7, worker="a-0")
    assert "knob.of.a-0.lr" in run.stored
    again = Run(make_kernel(), epoch=2)
    again.feed(Recovered(epoch=2, control=run.kernel.control()))
    assert sent(again, "b-0") == []
    assert sent(again, "a-0") == [SetKnob(knob="lr", value=0.7)]
