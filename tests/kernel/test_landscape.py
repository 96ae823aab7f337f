"""A stand-by is told to look at the loss, one at a time, and to leave off."""

import pytest

from tests.kernel.runs import Run, hello, make_kernel, of, only, three_groups
from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.actions import MapLandscape, Migrate
from torchloom_core.wire.events import Control, Issue, Outcome, Recovered, Reply, Verdict
from torchloom_core.wire.messages import Join, Survey
from torchloom_core.wire.requests import StopActions


def fleet(config=""):
    run = three_groups(make_kernel(config=config), standby=False)
    run.feed(hello("s-0", state="standby", actuators=("join", "drain")))
    run.feed(hello("v-0", state="standby", actuators=("join", "drain", "survey")))
    return run


def begin(run, **look):
    return only(Issue, run.ask(MapLandscape(**look))).command


def told(outputs):
    return [(issue.command.worker, issue.command.do) for issue in of(Issue, outputs)]


def test_the_stand_by_that_offers_it_is_told_what_is_wanted():
    command = begin(fleet(), points=40, seconds=9.0, side=5, plane="path", seed=3)
    assert command.worker == "v-0"
    assert command.do == Survey(points=40, seconds=9.0, side=5, plane="path", seed=3)


def test_its_time_is_beyond_the_usual_deadline():
    run = fleet("[weaver]\ncommand_deadline_s = 20.0")
    command = begin(run, seconds=300.0)
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
def test_where_no_stand_by_offers_it_one_line_says_so(change):
    run = fleet()
    run.feed(hello("v-0", **{"state": "standby", "actuators": ("survey",), **change}))
    assert only(Reply, run.ask(MapLandscape())).text == (
        "denied by impossible: no stand-by offers it: need attach(landscape=...) in the script of "
        "a stand-by that is heard"
    )


def test_a_stand_by_that_is_silent_is_none():
    run = fleet()
    run.tick(600.0)
    assert "no stand-by offers it" in only(Reply, run.ask(MapLandscape())).text


def test_a_second_one_waits_for_the_first_to_end():
    run = fleet()
    command = begin(run)
    denied = only(Reply, run.ask(MapLandscape())).text
    assert denied.startswith("denied by in_progress: landscape is being acted on by p1.")
    run.ack(command, detail="12 points in 0.1 s")
    assert only(Outcome, run.outputs).result == "done"
    assert begin(run).worker == "v-0"


def test_one_of_no_points_has_the_stand_by_leave_off_and_the_first_ends_as_it_says():
    run = fleet()
    command = begin(run)
    end = only(Issue, run.ask(MapLandscape(points=0))).command
    assert (end.worker, end.do) == ("v-0", Survey(points=0))
    run.ack(command, detail="12 points in 0.1 s: it was called off")
    run.ack(end)
    assert [outcome.result for outcome in run.all(Outcome)] == ["done", "done"]


def test_there_is_nothing_to_end_where_none_is_under_way():
    text = only(Reply, fleet().ask(MapLandscape(points=0))).text
    assert text == "denied by impossible: no landscape is under way"


def test_the_kill_switch_ends_it_on_the_stand_by_too():
    run = fleet()
    command = begin(run)
    run.ack(command, "accepted")
    reply = run.want(StopActions())
    assert "1 under way were called off" in reply.text
    assert told(run.outputs)[-1] == ("v-0", Survey(points=0))
    assert only(Outcome, run.outputs).result == "undone"


def test_what_fails_is_told_and_nobody_is_told_to_leave_off():
    run = fleet()
    run.ack(begin(run), "failed", detail="ValueError: need a loss that is a number, was nan")
    outcome = only(Outcome, run.outputs)
    assert outcome.result == "undone"
    assert "need a loss that is a number, was nan" in outcome.detail
    assert len(run.commands()) == 1


def test_a_dry_run_tells_nobody():
    run = fleet("[arbiter]\ndry_run = true")
    verdict = only(Verdict, run.ask(MapLandscape()))
    assert (verdict.granted, verdict.rule) == (False, "dry_run")
    assert not run.commands()


def test_the_stand_by_is_still_one_whom_a_group_can_move_to():
    run = fleet()
    run.exit("s-0", expected=True)
    begin(run)
    (issue,) = of(Issue, run.ask(Migrate(group="a")))
    assert (issue.command.worker, issue.command.do) == ("v-0", Join())


def test_the_kill_switch_after_a_restart_does_not_need_the_stand_by_to_have_said_hello():
    run = fleet()
    run.ack(begin(run), "accepted")
    control = run.kernel.control()
    after = Run(make_kernel(), now_ns=run.now_ns)
    after.feed(Recovered(epoch=2, control=Control(flights=control.flights, plans=control.plans)))
    assert "1 under way were called off" in after.want(StopActions()).text
