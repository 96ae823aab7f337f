"""Standby tasks: a landscape or a preview, one at a time, and their end."""

import pytest

from tests.kernel.runs import (
    Run,
    ScriptedPolicy,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.capabilities.landscape import MapLandscape
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.preview import PreviewChange
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.actions import ChangeKnob
from torchloom_core.wire.decisions import Issue, Outcome, Proposed, Reply, Verdict
from torchloom_core.wire.events import Control, Recovered
from torchloom_core.wire.operations import Join, Rehearse, Survey
from torchloom_core.wire.requests import StopActions

BOTH = pytest.mark.parametrize(
    ("action", "end", "end_task"),
    [
        (MapLandscape(), MapLandscape(points=0), Survey(points=0)),
        (PreviewChange(values={"lr": 0.2}), PreviewChange(steps=0), Rehearse(steps=0)),
    ],
    ids=["landscape", "preview"],
)


def fleet(config="", policies=()):
    run = three_groups(make_kernel(policies, config=config), standby=False)
    run.feed(hello("s-0", state="standby", actuators=("join", "drain")))
    can = ("join", "drain", "survey", "rehearse")
    run.feed(hello("v-0", state="standby", actuators=can))
    return run


def begin(run, action):
    return only(Issue, run.ask(action)).command


def sent(outputs):
    return [(issue.command.worker, issue.command.do) for issue in of(Issue, outputs)]


def test_the_standby_that_offers_the_task_gets_the_operation():
    look = {"points": 40, "seconds": 9.0, "side": 5, "plane": "path", "seed": 3}
    command = begin(fleet(), MapLandscape(**look))
    assert command.worker == "v-0"
    assert command.do == Survey(**look)
    trial = {"values": {"lr": 0.2}, "steps": 7, "repeats": 3, "seconds": 9.0, "seed": 3}
    command = begin(fleet(), PreviewChange(**trial))
    assert command.worker == "v-0"
    assert command.do == Rehearse(**trial)


def test_a_plane_is_divided_among_the_standbys_and_ended_on_all():
    run = fleet()
    can = ("join", "drain", "survey", "rehearse")
    for number in (1, 2):
        run.feed(hello(f"v{number}-0", state="standby", actuators=can))
    issued = sent(run.ask(MapLandscape(side=5, over=2)))
    assert issued == [
        (worker, Survey(side=5, over=2, among=("v-0", "v1-0"))) for worker in ("v-0", "v1-0")
    ]
    run = fleet()
    run.feed(hello("v1-0", state="standby", actuators=can))
    issued = sent(run.ask(MapLandscape(over=9)))
    assert [worker for worker, _ in issued] == ["v-0", "v1-0"]
    assert sent(run.ask(MapLandscape(points=0))) == [
        (worker, Survey(points=0)) for worker in ("v-0", "v1-0")
    ]


def test_a_preview_has_the_desired_values_of_the_run():
    run = fleet()
    only(Reply, run.ask(ChangeKnob(knob="lr", value=0.2)))
    command = begin(run, PreviewChange(values={"lr": 0.3}))
    assert command.do == Rehearse(values={"lr": 0.3}, now={"lr": 0.2})
    assert begin(run, PreviewChange(steps=0)).do == Rehearse(steps=0)


@BOTH
def test_the_end_is_also_sent_to_an_unreachable_standby(action, end, end_task):
    run = fleet()
    begin(run, action)
    for _ in range(30):
        run.report("s-0", state="standby")
    assert sent(run.ask(end)) == [("v-0", end_task)]


@pytest.mark.parametrize("kind", [MapLandscape, PreviewChange])
def test_its_time_limit_extends_the_deadline(kind):
    run = fleet("[weaver]\ncommand_deadline_s = 20.0")
    command = begin(run, kind(seconds=300.0))
    assert command.deadline_ns - command.issued_ns == 320 * SECOND_NS
    for _ in range(320):
        run.report("v-0", state="standby")
    assert not run.all(Outcome)
    for _ in range(6):
        run.report("v-0", state="standby")
    assert only(Outcome, run.outputs).result == "undone"


@pytest.mark.parametrize(
    "change",
    [
        {"actuators": ("join", "drain")},
        {"incarnation": 2, "state": "training"},
        {"incarnation": 2, "state": "joining"},
    ],
)
@BOTH
def test_without_a_standby_that_offers_it_the_denial_has_the_reason(change, action, end, end_task):
    run = fleet()
    can = ("survey", "rehearse")
    run.feed(hello("v-0", **{"state": "standby", "actuators": can, **change}))
    name = end_task.note
    assert only(Reply, run.ask(action)).text == (
        f"denied by impossible: no reachable standby offers it: need attach({name}=...) "
        "in its script"
    )


@pytest.mark.parametrize(
    ("verb", "action"), [("rehearse", MapLandscape()), ("survey", PreviewChange())]
)
def test_a_standby_with_another_task_does_not_offer_this_one(verb, action):
    run = fleet()
    run.feed(hello("v-0", state="standby", actuators=(verb,)))
    assert "no reachable standby offers it" in only(Reply, run.ask(action)).text


@BOTH
def test_an_unreachable_standby_is_not_used_for_a_task(action, end, end_task):
    run = fleet()
    run.tick(600.0)
    assert "no reachable standby offers it" in only(Reply, run.ask(action)).text


@pytest.mark.parametrize("second", [MapLandscape(), PreviewChange()])
@BOTH
def test_a_second_task_of_any_kind_is_denied_until_the_first_ends(action, end, end_task, second):
    run = fleet()
    command = begin(run, action)
    denied = only(Reply, run.ask(second)).text
    assert denied.startswith("denied by in_progress: p1.1 is under way on standby task")
    run.ack(command, detail="12 points in 0.1 s")
    assert only(Outcome, run.outputs).result == "done"
    assert begin(run, second).worker == "v-0"


@BOTH
def test_the_end_action_ends_the_task_on_the_standby(action, end, end_task):
    run = fleet()
    command = begin(run, action)
    ended = only(Issue, run.ask(end)).command
    assert (ended.worker, ended.do) == ("v-0", end_task)
    run.ack(command, detail="12 points in 0.1 s: it was called off")
    run.ack(ended)
    assert [outcome.result for outcome in run.all(Outcome)] == ["done", "done"]


@BOTH
def test_there_is_nothing_to_end_where_none_is_under_way(action, end, end_task):
    run, name = fleet(), end_task.note
    assert only(Reply, run.ask(end)).text == f"denied by impossible: no {name} is under way"
    begin(run, PreviewChange() if name == "landscape" else MapLandscape())
    assert only(Reply, run.ask(end)).text == f"denied by impossible: no {name} is under way"


@BOTH
def test_the_kill_switch_ends_it_on_the_standby_too(action, end, end_task):
    run = fleet()
    command = begin(run, action)
    run.ack(command, "accepted")
    reply = run.want(StopActions())
    assert "1 under way called off" in reply.text
    assert sent(run.outputs)[-1] == ("v-0", end_task)
    assert only(Outcome, run.outputs).result == "undone"


@BOTH
def test_a_failed_task_is_reported_and_no_end_is_sent(action, end, end_task):
    run = fleet()
    run.ack(begin(run, action), "failed", detail="ValueError: need a loss that is a number")
    outcome = only(Outcome, run.outputs)
    assert outcome.result == "undone"
    assert "need a loss that is a number" in outcome.detail
    assert len(run.commands()) == 1


@BOTH
def test_a_dry_run_sends_no_task(action, end, end_task):
    run = fleet("[arbiter]\ndry_run = true")
    verdict = only(Verdict, run.ask(action))
    assert (verdict.granted, verdict.rule) == (False, "dry_run")
    assert not run.commands()


@BOTH
def test_the_standby_can_still_replace_a_group(action, end, end_task):
    run = fleet()
    run.exit("s-0", expected=True)
    begin(run, action)
    (issue,) = of(Issue, run.ask(Migrate(group="a")))
    assert (issue.command.worker, issue.command.do) == ("v-0", Join())


@BOTH
def test_the_kill_switch_after_a_restart_needs_no_hello_of_the_standby(action, end, end_task):
    run = fleet()
    run.ack(begin(run, action), "accepted")
    control = run.kernel.control()
    after = Run(make_kernel(), now_ns=run.now_ns)
    after.feed(Recovered(epoch=2, control=Control(flights=control.flights, plans=control.plans)))
    assert "1 under way called off" in after.want(StopActions()).text


# --- previews ---


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lrr": 0.1}, "no knob is called 'lrr'; did you mean lr?"),
        ({"lr": 7.0}, "knob lr: need at most 1, was 7.0"),
        ({"lr": "fast"}, "knob lr: need a number, was 'fast'"),
    ],
)
def test_a_preview_of_invalid_values_is_denied(values, why):
    assert only(Reply, fleet().ask(PreviewChange(values=values))).text == (
        f"denied by impossible: {why}"
    )


def priced(run, action):
    return only(Proposed, run.ask(action)).proposal.cost_gpu_s


@pytest.mark.parametrize(("steps", "price"), [(50, 2 * 5 * 50 * 0.02), (5000, 120.0), (0, 0.0)])
def test_its_price_is_known_before_it_is_granted(steps, price):
    run = fleet()
    for worker, step_time_s in (("a-0", 0.01), ("b-0", 0.02), ("c-0", 5.0)):
        run.feed(telemetry(worker, {"step_time_s": step_time_s}))
    run.tick()
    repeats = 1 if steps > 1000 else 5
    action = PreviewChange(values={"lr": 0.2}, steps=steps, repeats=repeats)
    assert priced(run, action) == pytest.approx(price)


def test_without_a_step_time_its_price_is_its_time_limit():
    assert priced(fleet(), PreviewChange(seconds=30.0)) == 30.0
    assert priced(fleet(), MapLandscape(seconds=45.0)) == 45.0


def test_a_policy_can_propose_it_with_its_own_price():
    scripted = ScriptedPolicy()
    run = fleet(policies=[active("scripted", scripted)])
    action = PreviewChange(values={"lr": 0.2}, steps=10)
    scripted.next = [proposal(action, gain=100.0, cost_gpu_s=action.price_s(0.5))]
    run.tick()
    assert sent(run.outputs) == [("v-0", Rehearse(values={"lr": 0.2}, steps=10))]
    run.ack(only(Issue, run.outputs).command, detail="104 steps in 2.0 s")
    scripted.next = [proposal(action, gain=10.0, cost_gpu_s=action.price_s(None))]
    verdict = only(Verdict, run.tick(600.0))
    assert not verdict.granted
