"""A successor continues after a Weaver that died at any moment."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from tests.examples import examples
from tests.kernel.inputs import ROSTER
from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    three_groups,
)
from tests.kernel.worlds import CONFIG, World, do, settle, start, steps
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.pause import PauseRun
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.weaver.recovery import Inheritance
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import CommandStatus, Issue, KnobDesired, Outcome, Reply, Verdict
from torchloom_core.wire.events import Control
from torchloom_core.wire.messages import KnobSpec
from torchloom_core.wire.operations import SetKnob, Withdraw
from torchloom_core.wire.plans import WITHDRAWN
from torchloom_core.wire.requests import StopActions


def succeed(
    run: Run, kernel: Kernel | None = None, later_s: float = 0.0
) -> tuple[Run, list[Any], Control]:
    """Return the run with a new kernel that has only the stored state."""
    recovered = Inheritance(run.stored, "bucket").recovered(run.kernel.commands.epoch + 1)
    successor = Run.__new__(Run)
    successor.kernel = kernel or make_kernel(config=CONFIG)
    successor.now_ns, successor.outputs, successor.stored = run.now_ns, [], {}
    return successor, successor.feed(recovered, later_s), recovered.control


def contents(control: Control) -> Any:
    """Return the control with unordered parts in a fixed order."""
    return {
        name: sorted(map(repr, value)) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(control).items()
    }


@settings(max_examples=examples(150))
@given(before=steps, after=steps)
def test_a_successor_sends_commands_in_flight_again_and_reaches_the_same_end(before, after):
    run, world = start()
    for want, pick in before:
        do(run, world, want, pick)
    plans = run.kernel.run.plans.table.values()
    # A pause is not taken over: its workers have resumed by themselves.
    under_way = {plan.verdict for plan in plans if not isinstance(plan.action, PauseRun)}
    successor, first, control = succeed(run)

    assert contents(control) == contents(run.kernel.control())
    sent = [f.command for f in control.flights if f.status != WITHDRAWN]
    again = [i.command for i in of(Issue, first)]
    assert again == [msgspec.structs.replace(c, epoch=run.kernel.commands.epoch + 1) for c in sent]
    assert len(first) == len(control.flights)
    restored = successor.kernel.control()
    assert restored == msgspec.structs.replace(control, flights=restored.flights)
    assert [f.status for f in restored.flights] == [f.status for f in control.flights]
    assert Inheritance(successor.stored, "bucket").recovered(1).control == restored

    twin = World()
    twin.hello, twin.done = dict(world.hello), list(world.done)
    for worker in twin.hello.values():
        if worker.state != "left":
            successor.feed(worker)
    settle(run, world)
    settle(successor, twin)
    ends = {o.verdict: (o.result, o.detail) for o in run.all(Outcome) if o.verdict in under_way}
    assert {
        o.verdict: (o.result, o.detail) for o in successor.all(Outcome) if o.verdict in under_way
    } == ends
    assert set(ends) == under_way
    assert not successor.kernel.run.plans.table
    assert {w: h.state for w, h in twin.hello.items()} == {
        w: h.state for w, h in world.hello.items()
    }

    for want, pick in after:
        do(successor, twin, want, pick)
    old = {c.id for c in run.commands()} | {v.proposal for v in run.all(Verdict)}
    new = {c.id for c in successor.commands() if c not in again}
    new |= {v.proposal for v in successor.all(Verdict)}
    assert not old & new


MODE = KnobSpec(name="mode", kind="choice", choices=("none", "bf16"), fence="run")
TOGETHER = [
    hello(worker, knobs=(MODE,), values={"mode": "none"}, actuators=("fenced_change",))
    for worker in ("a-0", "b-0", "c-0")
]


@pytest.fixture
def offered():
    """A successor of a Weaver with an offered change, before the hellos of its three workers."""
    run = Run(make_kernel(config=CONFIG))
    for message in TOGETHER:
        run.feed(message)
    run.ask(ChangeKnob(knob="mode", value="bf16"))
    successor, again, _ = succeed(run)
    return successor, [issue.command for issue in of(Issue, again)]


def test_a_successor_waits_for_all_ranks_with_an_offered_change(offered):
    successor, commands = offered
    for command in commands[:2]:
        assert not of(Outcome, successor.ack(command, "applied", step=7))
    outcome = only(Outcome, successor.ack(commands[2], "applied", step=7))
    assert (outcome.result, outcome.detail) == ("done", "mode = 'bf16' on 3 workers at step 7")


def test_a_successor_withdraws_a_rejected_change_from_unknown_ranks(offered):
    successor, commands = offered
    outputs = successor.ack(commands[0], "rejected", detail="no bf16 here")
    withdrawn = [i.command for i in of(Issue, outputs) if isinstance(i.command.do, Withdraw)]
    assert {c.worker for c in withdrawn} == {c.worker for c in commands[1:]}


def test_a_successor_offers_a_waiting_change_after_the_first_hello():
    run = Run(make_kernel(config=CONFIG))
    for message in TOGETHER:
        run.feed(message)
    first = [i.command for i in of(Issue, run.ask(ChangeKnob(knob="mode", value="bf16")))]
    waits = run.ask(ChangeKnob(knob="mode", value="none"))
    assert not of(Issue, waits)
    successor, again, _ = succeed(run)
    for issue in of(Issue, again):
        outputs = successor.ack(issue.command, "applied", step=7)
    assert only(Outcome, outputs).result == "done"
    assert not of(Outcome, successor.tick())
    fed = [successor.feed(message) for message in TOGETHER]
    outputs = [output for outputs in [*fed, successor.tick()] for output in outputs]
    second = [issue.command for issue in of(Issue, outputs)]
    assert {command.worker for command in second} == {command.worker for command in first}


def test_a_successor_of_a_stopped_weaver_is_stopped():
    run, _ = start()
    run.want(StopActions())
    successor, _, _ = succeed(run)
    successor.feed(ROSTER[0])
    assert not only(Verdict, successor.ask(Migrate(group="a"))).granted


def test_a_successor_sets_a_knob_that_a_worker_missed():
    run = three_groups(make_kernel(config=CONFIG))
    outputs = run.ask(ChangeKnob(knob="lr", value=0.5))
    assert only(KnobDesired, outputs).value == 0.5
    for issue in of(Issue, outputs):
        run.ack(issue.command, "failed" if issue.command.worker == "a-0" else "applied")
    successor, first, _ = succeed(run)
    assert first == []
    issue = only(Issue, successor.feed(ROSTER[0]))
    assert issue.command.do == SetKnob(knob="lr", value=0.5)
    assert issue.command.id == "c2.1"


def test_commands_in_flight_get_no_extra_time_by_a_clock_that_is_behind():
    run = three_groups(make_kernel(config=CONFIG))
    run.ask(SaveCheckpoint())
    (was, *_) = run.commands()
    successor, _, _ = succeed(run, later_s=-3600.0)
    command = next(c for c in successor.commands() if c.id == was.id)
    assert (command.issued_ns, command.deadline_ns - command.issued_ns) == (
        successor.now_ns,
        was.deadline_ns - was.issued_ns,
    )
    for row in ROSTER:
        successor.feed(row)
    outputs = [output for _ in range(140) for output in successor.tick()]
    assert [outcome.action for outcome in of(Outcome, outputs)] == [SaveCheckpoint()]
    assert not successor.kernel.commands.flights
    assert not successor.kernel.run.plans.table


def test_a_plan_ends_in_its_time_by_a_clock_that_is_behind():
    run = three_groups(make_kernel(config=CONFIG))
    outputs = run.ask(Migrate(group="a"))
    run.ack(only(Issue, outputs).command)  # and the standby never trains
    successor, _, _ = succeed(run, later_s=-3600.0)
    for row in ROSTER:
        successor.feed(row)
    outputs = [output for _ in range(140) for output in successor.tick()]
    (outcome,) = of(Outcome, outputs)
    assert 0 < outcome.took_s < 140


RESTS = {
    "cooldown": "[arbiter]\ncooldown_s = 1_000",
    "rate_limit": "[arbiter]\ncooldown_s = 0\n[arbiter.actions.checkpoint]\nlimit_per_hour = 1",
    "budget": (
        "[arbiter]\ncooldown_s = 0\n[arbiter.actions.checkpoint]\nbudget_gpu_s_per_hour = 10"
    ),
}


@pytest.mark.parametrize("later_s", [0.0, -86_400.0])
@pytest.mark.parametrize("rule", RESTS)
def test_a_successor_applies_limits_with_earlier_grants(rule, later_s):
    scripted = ScriptedPolicy()
    run = three_groups(make_kernel([active("scripted", scripted)], RESTS[rule]))
    save = proposal(SaveCheckpoint(), cost_gpu_s=6.0)
    scripted.next = [save]
    assert only(Verdict, run.tick()).granted
    for command in run.commands():
        run.ack(command)
    assert only(Outcome, run.outputs).result == "done"

    again = ScriptedPolicy()
    successor, _, _ = succeed(run, make_kernel([active("scripted", again)], RESTS[rule]), later_s)
    successor.feed(ROSTER[0])
    again.next = [save]
    assert only(Verdict, successor.tick()).rule == rule
    again.next = [save]
    assert only(Verdict, successor.tick(3_600.0)).granted


def test_a_successors_breaker_counts_earlier_failures():
    text = "[arbiter.breaker]\nfailures = 1\nmax_moved_share = 1"
    run = three_groups(make_kernel(config=text))
    (join,) = of(Issue, run.ask(Migrate(group="a")))
    run.ack(join.command, "failed")

    scripted = ScriptedPolicy()
    successor, _, _ = succeed(run, make_kernel([active("scripted", scripted)], text))
    for group in "abcs":
        successor.feed(hello(f"{group}-0", state="standby" if group == "s" else "training"))
    scripted.next = [proposal(Migrate(group="b"))]
    assert only(Verdict, successor.tick()).rule == "breaker"


def test_a_successor_waits_for_all_commands_of_a_plan():
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    run.ask(ChangeKnob(knob="lr", value=0.5))
    first, second, third = run.commands()
    successor, _, _ = succeed(run)
    successor.ack(first)
    successor.ack(second, "failed")
    successor.tick()
    assert not successor.all(Outcome)
    successor.ack(third)
    assert only(Outcome, successor.outputs).result == "partial"


def test_a_reply_still_comes_after_a_recovery():
    run, _ = start()
    successor, _, _ = succeed(run)
    assert only(Reply, successor.ask(Migrate(group="a"))).text.startswith("denied by impossible")


def test_a_successor_waits_for_the_hello_of_a_standby():
    run = three_groups(make_kernel(config=CONFIG))
    run.ack(only(Issue, run.ask(Migrate(group="a"))).command)
    successor, _, _ = succeed(run)
    assert successor.tick() == []
    successor.feed(hello("a-0"))
    (drain,) = of(Issue, successor.feed(hello("s-0")))
    assert drain.command.worker == "a-0"


def test_an_exit_before_the_hello_ends_the_commands_of_that_incarnation():
    run = three_groups(make_kernel(config=CONFIG), standby=False)
    run.ask(SaveCheckpoint())
    first, *others = run.commands()
    for command in others:
        run.ack(command)
    successor, _, _ = succeed(run)
    assert successor.exit(first.worker, incarnation=first.incarnation + 1) == []
    outputs = successor.exit(first.worker, incarnation=first.incarnation)
    assert [(status.command, status.status) for status in of(CommandStatus, outputs)] == [
        (first.id, "expired")
    ]
    assert not successor.kernel.commands.flights


def test_a_plan_of_a_capability_that_is_gone_ends_with_one_outcome():
    run = three_groups(make_kernel(config=CONFIG))
    [issue] = of(Issue, run.ask(SaveCheckpoint(group="a")))
    for key, entry in run.stored.items():
        run.stored[key] = entry.replace(b':"checkpoint"', b':"odd"')
    successor, first, control = succeed(run)
    assert b'"kind":"odd","group":"a"' in msgspec.json.encode(control.plans)
    outcome = only(Outcome, [*first, *successor.tick()])
    assert (outcome.result, outcome.detail) == ("undone", "capability odd is not installed")
    assert not successor.kernel.run.plans.table
    assert issue.command.id in {flight.command.id for flight in control.flights}
