"""A standby is told to look at the loss, or to try a change: one at a time, and to leave off."""

import pytest

from tests.kernel.runs import (
    Run,
    Says,
    active,
    hello,
    make_kernel,
    of,
    only,
    proposal,
    telemetry,
    three_groups,
)
from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.actions import ChangeKnob, MapLandscape, Migrate, PreviewChange
from torchloom_core.wire.events import (
    Control,
    Issue,
    Outcome,
    Proposed,
    Recovered,
    Reply,
    Verdict,
)
from torchloom_core.wire.messages import Join, Rehearse, Survey
from torchloom_core.wire.requests import StopActions

BOTH = pytest.mark.parametrize(
    ("action", "end", "leave_off"),
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


def told(outputs):
    return [(issue.command.worker, issue.command.do) for issue in of(Issue, outputs)]


def test_the_stand_by_that_offers_it_is_told_what_is_wanted():
    look = {"points": 40, "seconds": 9.0, "side": 5, "plane": "path", "seed": 3}
    command = begin(fleet(), MapLandscape(**look))
    assert command.worker == "v-0"
    assert command.do == Survey(**look)
    trial = {"values": {"lr": 0.2}, "steps": 7, "repeats": 3, "seconds": 9.0, "seed": 3}
    command = begin(fleet(), PreviewChange(**trial))
    assert command.worker == "v-0"
    assert command.do == Rehearse(**trial)


def test_a_plane_is_divided_over_as_many_stand_bys_as_there_are_and_all_leave_off():
    run = fleet()
    can = ("join", "drain", "survey", "rehearse")
    for number in (1, 2):
        run.feed(hello(f"v{number}-0", state="standby", actuators=can))
    issued = told(run.ask(MapLandscape(side=5, over=2)))
    assert issued == [
        (worker, Survey(side=5, over=2, among=("v-0", "v1-0"))) for worker in ("v-0", "v1-0")
    ]
    run = fleet()
    run.feed(hello("v1-0", state="standby", actuators=can))
    issued = told(run.ask(MapLandscape(over=9)))
    assert [worker for worker, _ in issued] == ["v-0", "v1-0"]
    assert told(run.ask(MapLandscape(points=0))) == [
        (worker, Survey(points=0)) for worker in ("v-0", "v1-0")
    ]


def test_a_preview_is_told_what_is_wanted_of_the_run_s_knobs_already():
    run = fleet()
    only(Reply, run.ask(ChangeKnob(knob="lr", value=0.2)))
    command = begin(run, PreviewChange(values={"lr": 0.3}))
    assert command.do == Rehearse(values={"lr": 0.3}, now={"lr": 0.2})
    assert begin(run, PreviewChange(steps=0)).do == Rehearse(steps=0)


@BOTH
def test_one_that_has_fallen_silent_is_told_to_leave_off_all_the_same(action, end, leave_off):
    run = fleet()
    begin(run, action)
    for _ in range(30):
        run.hear("s-0", state="standby")
    assert told(run.ask(end)) == [("v-0", leave_off)]


@pytest.mark.parametrize("kind", [MapLandscape, PreviewChange])
def test_its_time_is_beyond_the_usual_deadline(kind):
    run = fleet("[weaver]\ncommand_deadline_s = 20.0")
    command = begin(run, kind(seconds=300.0))
    assert command.deadline_ns - command.issued_ns == 320 * SECOND_NS
    for _ in range(320):
        run.hear("v-0", state="standby")
    assert not run.all(Outcome)
    for _ in range(6):
        run.hear("v-0", state="standby")
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
def test_where_no_stand_by_offers_it_one_line_says_so(change, action, end, leave_off):
    run = fleet()
    can = ("survey", "rehearse")
    run.feed(hello("v-0", **{"state": "standby", "actuators": can, **change}))
    name = leave_off.note
    assert only(Reply, run.ask(action)).text == (
        f"denied by impossible: no reachable standby offers it: need attach({name}=...) "
        "in its script"
    )


@pytest.mark.parametrize(
    ("verb", "action"), [("rehearse", MapLandscape()), ("survey", PreviewChange())]
)
def test_who_offers_another_standby_task_does_not_offer_this_one(verb, action):
    run = fleet()
    run.feed(hello("v-0", state="standby", actuators=(verb,)))
    assert "no reachable standby offers it" in only(Reply, run.ask(action)).text


@BOTH
def test_a_stand_by_that_is_silent_is_none(action, end, leave_off):
    run = fleet()
    run.tick(600.0)
    assert "no reachable standby offers it" in only(Reply, run.ask(action)).text


@pytest.mark.parametrize("second", [MapLandscape(), PreviewChange()])
@BOTH
def test_a_second_one_of_any_kind_waits_for_the_first_to_end(action, end, leave_off, second):
    run = fleet()
    command = begin(run, action)
    denied = only(Reply, run.ask(second)).text
    assert denied.startswith("denied by in_progress: p1.1 is under way on standby task")
    run.ack(command, detail="12 points in 0.1 s")
    assert only(Outcome, run.outputs).result == "done"
    assert begin(run, second).worker == "v-0"


@BOTH
def test_what_ends_it_has_the_stand_by_leave_off_and_it_ends_as_it_says(action, end, leave_off):
    run = fleet()
    command = begin(run, action)
    ended = only(Issue, run.ask(end)).command
    assert (ended.worker, ended.do) == ("v-0", leave_off)
    run.ack(command, detail="12 points in 0.1 s: it was called off")
    run.ack(ended)
    assert [outcome.result for outcome in run.all(Outcome)] == ["done", "done"]


@BOTH
def test_there_is_nothing_to_end_where_none_is_under_way(action, end, leave_off):
    run, name = fleet(), leave_off.note
    assert only(Reply, run.ask(end)).text == f"denied by impossible: no {name} is under way"
    begin(run, PreviewChange() if name == "landscape" else MapLandscape())
    assert only(Reply, run.ask(end)).text == f"denied by impossible: no {name} is under way"


@BOTH
def test_the_kill_switch_ends_it_on_the_stand_by_too(action, end, leave_off):
    run = fleet()
    command = begin(run, action)
    run.ack(command, "accepted")
    reply = run.want(StopActions())
    assert "1 under way called off" in reply.text
    assert told(run.outputs)[-1] == ("v-0", leave_off)
    assert only(Outcome, run.outputs).result == "undone"


@BOTH
def test_what_fails_is_told_and_nobody_is_told_to_leave_off(action, end, leave_off):
    run = fleet()
    run.ack(begin(run, action), "failed", detail="ValueError: need a loss that is a number")
    outcome = only(Outcome, run.outputs)
    assert outcome.result == "undone"
    assert "need a loss that is a number" in outcome.detail
    assert len(run.commands()) == 1


@BOTH
def test_a_dry_run_tells_nobody(action, end, leave_off):
    run = fleet("[arbiter]\ndry_run = true")
    verdict = only(Verdict, run.ask(action))
    assert (verdict.granted, verdict.rule) == (False, "dry_run")
    assert not run.commands()


@BOTH
def test_the_stand_by_is_still_one_whom_a_group_can_move_to(action, end, leave_off):
    run = fleet()
    run.exit("s-0", expected=True)
    begin(run, action)
    (issue,) = of(Issue, run.ask(Migrate(group="a")))
    assert (issue.command.worker, issue.command.do) == ("v-0", Join())


@BOTH
def test_the_kill_switch_after_a_restart_does_not_need_the_stand_by_to_have_said_hello(
    action, end, leave_off
):
    run = fleet()
    run.ack(begin(run, action), "accepted")
    control = run.kernel.control()
    after = Run(make_kernel(), now_ns=run.now_ns)
    after.feed(Recovered(epoch=2, control=Control(flights=control.flights, plans=control.plans)))
    assert "1 under way called off" in after.want(StopActions()).text


# --- a change that is tried ---


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"lrr": 0.1}, "no knob is called 'lrr'; did you mean lr?"),
        ({"lr": 7.0}, "knob lr: need at most 1, was 7.0"),
        ({"lr": "fast"}, "knob lr: need a number, was 'fast'"),
    ],
)
def test_a_change_that_the_run_s_knobs_would_not_take_is_not_tried(values, why):
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


def test_where_no_step_was_seen_its_price_is_its_time():
    assert priced(fleet(), PreviewChange(seconds=30.0)) == 30.0
    assert priced(fleet(), MapLandscape(seconds=45.0)) == 45.0


def test_a_policy_proposes_it_like_any_other_and_says_its_price_itself():
    says = Says()
    run = fleet(policies=[active("says", says)])
    action = PreviewChange(values={"lr": 0.2}, steps=10)
    says.next = [proposal(action, gain=100.0, cost_gpu_s=action.price_s(0.5))]
    run.tick()
    assert told(run.outputs) == [("v-0", Rehearse(values={"lr": 0.2}, steps=10))]
    run.ack(only(Issue, run.outputs).command, detail="104 steps in 2.0 s")
    says.next = [proposal(action, gain=10.0, cost_gpu_s=action.price_s(None))]
    verdict = only(Verdict, run.tick(600.0))
    assert not verdict.granted
