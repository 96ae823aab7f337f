"""Whom the lighthouse holds back, and who is told to make its Manager since it is held."""

import pytest

from tests.kernel.runs import (
    Run,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    only,
    telemetry,
    three_groups,
)
from torchloom_core.wire.actions import AdmitGroup, DrainGroup, EvictGroup, Migrate
from torchloom_core.wire.events import Issue, Outcome, Recovered
from torchloom_core.wire.messages import Cut, Drain, Join, Prepare
from torchloom_core.wire.requests import ResumeActions, StopActions
from torchloom_core.wire.steering import HoldBack, Steer

CONFIG = """
[arbiter]
max_in_motion_share = 1
cooldown_s = 0
[arbiter.breaker]
max_moved_share = 1
"""


def standby(worker: str, can: str = "prepare", **changes):
    return hello(worker, state="standby", actuators=("drain", "join", can), **changes)


def run_with(*standbys: str, config: str = CONFIG) -> Run:
    run = three_groups(make_kernel(config=config), standby=False)
    for worker in standbys:
        run.feed(standby(worker))
    return run


@pytest.fixture
def run() -> Run:
    """A run with a standby s whose lighthouse has been seen."""
    told = run_with("s-0")
    told.feed(lighthouse_view())
    return told


def held(outputs) -> list[tuple[str, ...]]:
    return [steer.do.names for steer in of(Steer, outputs) if isinstance(steer.do, HoldBack)]


def told(outputs, operation) -> list[str]:
    commands = [issue.command for issue in of(Issue, outputs)]
    return [command.worker for command in commands if isinstance(command.do, operation)]


def hears(run: Run, **changes):
    """Have the lighthouse say that it has heard everything that was said to it."""
    said = run.all(Steer)[-1]
    return run.feed(lighthouse_view(**{"epoch": said.epoch, "number": said.number} | changes))


def prepare(run: Run) -> None:
    """Have all standbys prepared, and say so as they do."""
    run.tick()
    hears(run)
    for issue in of(Issue, run.tick()):
        run.feed(standby(issue.command.worker, "prepared"))
        run.ack(issue.command)


def restarted(before: Run, **changes) -> Run:
    """Start another Weaver on what this one left."""
    control = before.kernel.control()
    after = Run(make_kernel(config=CONFIG), epoch=2, now_ns=before.now_ns)
    after.feed(Recovered(epoch=2, control=control))
    after.feed(lighthouse_view(epoch=1, number=1, **changes))
    return after


def test_a_stand_by_is_prepared_once_the_lighthouse_has_heard_that_it_is_held(run):
    outputs = run.tick()
    assert (held(outputs), told(outputs, Prepare)) == ([("s",)], [])
    assert only(Steer, outputs).reason == "they stand by"
    run.feed(lighthouse_view(epoch=1, number=0))
    assert told(run.tick(), Prepare) == []
    hears(run)
    assert told(run.tick(), Prepare) == ["s-0"]
    assert told(run.tick(), Prepare) == []


def test_what_an_earlier_weaver_was_heard_of_counts_for_nothing(run):
    run.tick()
    run.feed(lighthouse_view(epoch=0, number=9))
    assert told(run.tick(), Prepare) == []


def test_none_is_prepared_where_the_lighthouse_forms_no_quorum(run):
    run.tick()
    hears(run, members=())
    assert told(run.tick(), Prepare) == []


def test_none_is_held_or_prepared_where_the_lighthouse_is_torchft_s():
    run = run_with("s-0")
    assert (run.tick(), run.tick()) == ([], [])


def test_who_came_after_the_lighthouse_was_told_is_not_prepared_before_it_is_told_again(run):
    run.tick()
    hears(run)
    run.feed(standby("t-0"))
    fleet = run.kernel.fleet
    assert run.kernel.run.held_standbys.to_prepare(set()) == [fleet.row_of["s-0"]]


def test_a_stand_by_that_cannot_be_held_is_left_alone():
    run = run_with()
    run.feed(hello("s-0", state="standby"))
    run.feed(standby("t-0"))
    run.feed(standby("t-1", can="checkpoint"))
    run.feed(lighthouse_view())
    assert held(run.tick()) == [()]
    hears(run)
    assert told(run.tick(), Prepare) == []


def test_all_ranks_of_a_group_are_prepared_together():
    run = run_with("s-0", "s-1")
    run.feed(lighthouse_view())
    assert held(run.tick()) == [("s",)]
    hears(run)
    assert told(run.tick(), Prepare) == ["s-0", "s-1"]


@pytest.mark.parametrize("status", ["rejected", "failed", "applied"])
def test_who_has_answered_is_not_asked_again_in_this_life(run, status):
    run.tick()
    hears(run)
    command = only(Issue, run.tick()).command
    run.ack(command, status)
    assert told(run.tick(), Prepare) == []
    run.feed(standby("s-0", incarnation=2))
    assert told(run.tick(), Prepare) == ["s-0"]


def test_a_stand_by_that_refused_may_join_all_the_same(run):
    run.tick()
    hears(run)
    run.ack(only(Issue, run.tick()).command, "rejected")
    outputs = run.ask(Migrate(group="a"))
    assert (told(outputs, Join), held(outputs)) == (["s-0"], [()])


def test_who_did_not_hear_in_time_is_asked_again(run):
    run.tick()
    hears(run)
    run.tick()
    assert told(run.tick(70.0), Prepare) == ["s-0"]


@pytest.mark.parametrize("action", [Migrate(group="a"), AdmitGroup(group="s")])
def test_who_is_told_to_join_is_held_no_more_from_that_moment(run, action):
    prepare(run)
    outputs = run.ask(action)
    assert (told(outputs, Join), held(outputs)) == (["s-0"], [()])
    run.ack(only(Issue, outputs).command)
    assert held(run.tick()) == []
    run.hear("s-0")
    assert held(run.tick()) == []


def test_who_is_to_replace_a_group_that_hangs_is_held_until_it_is_told_to_join(run):
    for group in "abc":
        run.feed(in_quorum(f"{group}-0", 7))
    prepare(run)
    outputs = run.ask(EvictGroup(group="b", then="replace"))
    assert (told(outputs, Cut), held(outputs)) == (["a-0", "c-0"], [])
    assert held(run.tick()) == []
    cuts = [run.ack(issue.command) for issue in of(Issue, outputs)]
    assert (told(cuts[1], Join), held(cuts[1])) == (["s-0"], [()])


def test_a_batch_from_before_it_joined_does_not_have_it_held_again(run):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    run.feed(telemetry("s-0", state="standby", step=-1))
    run.ack(command)
    assert held(run.tick()) == []


@pytest.mark.parametrize("status", ["rejected", "expired"])
def test_one_that_did_not_join_is_held_again(run, status):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    assert only(Outcome, run.ack(command, status)).result == "undone"
    assert held(run.tick()) == [("s",)]


def test_one_whose_join_was_taken_back_is_held_once_it_is_known_that_it_did_not_join(run):
    prepare(run)
    command = only(Issue, run.ask(AdmitGroup(group="s"))).command
    run.want(StopActions())
    assert held(run.tick()) == []
    run.ack(command, "expired")
    assert held(run.tick()) == [("s",)]


def test_the_others_stay_held_when_one_joins():
    run = run_with("s-0", "t-0")
    run.feed(lighthouse_view())
    prepare(run)
    assert held(run.ask(AdmitGroup(group="s"))) == [("t",)]


def test_a_stand_by_that_dies_is_held_no_more(run):
    prepare(run)
    run.exit("s-0")
    assert held(run.tick()) == [()]


def test_a_stand_by_that_is_being_drained_stays_held_and_is_not_prepared(run):
    run.tick()
    hears(run)
    assert told(run.ask(DrainGroup(group="s")), Drain) == ["s-0"]
    assert (held(run.tick()), told(run.all(Issue), Prepare)) == ([], [])


def test_none_is_prepared_while_actions_are_stopped_and_each_after_that(run):
    run.want(StopActions())
    assert held(run.tick()) == [("s",)]
    hears(run)
    assert told(run.tick(), Prepare) == []
    run.want(ResumeActions())
    assert told(run.tick(), Prepare) == ["s-0"]


def test_none_is_prepared_in_a_dry_run():
    run = run_with("s-0", config="[arbiter]\ndry_run = true")
    run.feed(lighthouse_view())
    run.tick()
    hears(run)
    assert told(run.tick(), Prepare) == []


def test_a_weaver_that_starts_again_says_at_once_whom_it_holds_and_prepares_none_again(run):
    prepare(run)
    after = restarted(run, held=("s:uuid",))
    # Nobody has said hello yet: that s may join is not known.
    assert held(after.tick()) == [("s",)]
    for group in "abc":
        after.feed(hello(f"{group}-0"))
    after.feed(standby("s-0", "prepared"))
    hears(after, held=("s:uuid",))
    assert (held(after.tick()), told(after.all(Issue), Prepare)) == ([], [])


def test_a_weaver_that_starts_again_frees_who_is_told_to_join(run):
    prepare(run)
    run.ask(AdmitGroup(group="s"))
    after = restarted(run, held=("s:uuid",))
    after.feed(standby("s-0", "prepared"))
    assert held(after.tick()) == [()]


def test_a_weaver_that_starts_again_frees_who_has_joined_meanwhile(run):
    prepare(run)
    after = restarted(run)
    after.feed(hello("s-0", state="joining"))
    assert held(after.tick()) == [()]


@pytest.mark.parametrize("state", ["new", "restored"])
def test_a_lighthouse_that_starts_again_is_told_whom_to_hold(run, state):
    prepare(run)
    run.feed(lighthouse_view(incarnation=2, state=state, epoch=1))
    assert held(run.outputs)[-1] == ("s",)
    assert len(held(run.outputs)) == 2
    run.feed(standby("t-0"))
    run.tick()
    assert told(run.tick(), Prepare) == []  # it has not heard of t
    hears(run, incarnation=2)
    assert told(run.tick(), Prepare) == ["t-0"]


def test_a_lighthouse_that_starts_again_with_an_old_state_is_told_that_none_is_held(run):
    prepare(run)
    run.ask(AdmitGroup(group="s"))
    hears(run)
    run.feed(lighthouse_view(incarnation=2, state="restored", epoch=1, held=("s:uuid",)))
    assert held(run.outputs)[-2:] == [(), ()]
