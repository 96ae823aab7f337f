"""A group that hangs is evicted: the others are freed, and it is ended where that is wanted."""

import pytest

from tests.kernel.runs import (
    Run,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    only,
    three_groups,
)
from torchloom_core.wire.actions import EvictGroup, Migrate
from torchloom_core.wire.events import Issue, Outcome, Verdict
from torchloom_core.wire.messages import Cut, Exit, Join, Terminate
from torchloom_core.wire.steering import Evict, Steer

QUORUM = 7


@pytest.fixture
def run() -> Run:
    told = three_groups(make_kernel())
    for group in "abc":
        told.feed(in_quorum(f"{group}-0", QUORUM))
    told.feed(lighthouse_view())
    return told


def issued(outputs):
    return [(issue.command.worker, issue.command.do) for issue in of(Issue, outputs)]


def finish(run: Run, outputs) -> list:
    """Apply all commands, stage after stage, and return everything that came of it."""
    told = list(outputs)
    for output in told:  # which grows
        if isinstance(output, Issue):
            told += run.ack(output.command)
    return told


def test_the_others_are_cut_off_before_the_group_is_ended(run):
    outputs = run.ask(EvictGroup(group="b"))
    assert issued(outputs) == [("a-0", Cut(quorum_id=QUORUM)), ("c-0", Cut(quorum_id=QUORUM))]
    told = finish(run, outputs)
    assert issued(told)[2:] == [("b-0", Terminate())]
    outcome = only(Outcome, told)
    assert outcome.result == "done"
    assert outcome.detail == "b was evicted from the quorum and was terminated"


def test_one_whose_quorum_is_not_known_cannot_be_left_to_come_back():
    run = three_groups(make_kernel())
    verdict = only(Verdict, run.ask(EvictGroup(group="b", then="wait")))
    assert not verdict.granted
    assert verdict.reason == "b has not reported its quorum"


def test_a_group_that_may_come_back_is_not_ended(run):
    told = finish(run, run.ask(EvictGroup(group="b", then="wait")))
    assert Terminate() not in dict(issued(told)).values()
    assert only(Outcome, told).detail == "b was evicted from the quorum and may rejoin"


def test_a_stand_by_that_is_to_replace_it_is_taken_from_the_start(run):
    outputs = run.ask(EvictGroup(group="b", then="replace"))
    other = only(Verdict, run.ask(Migrate(group="a")))
    assert (other.granted, other.rule) == (False, "impossible")
    assert issued(finish(run, outputs))[2:] == [("s-0", Join()), ("b-0", Terminate())]


def test_the_lighthouse_is_told_at_once_of_the_very_quorum(run):
    steer = only(Steer, run.ask(EvictGroup(group="b")))
    assert steer.do == Evict(replicas=("b:uuid",), quorum_id=QUORUM)
    assert (steer.epoch, steer.number, steer.reason) == (1, 1, "b hangs")


def test_whoever_is_in_another_quorum_already_is_not_cut_off(run):
    run.feed(in_quorum("c-0", QUORUM + 1))
    assert issued(run.ask(EvictGroup(group="b"))) == [("a-0", Cut(quorum_id=QUORUM))]


def test_where_no_quorum_is_known_the_group_is_ended_and_nobody_is_cut_off():
    run = three_groups(make_kernel())
    assert issued(run.ask(EvictGroup(group="b"))) == [("b-0", Terminate())]


def test_the_quorum_of_another_life_says_nothing_of_this_one(run):
    run.feed(hello("b-0", incarnation=2))
    assert issued(run.ask(EvictGroup(group="b"))) == [("b-0", Terminate())]


@pytest.mark.parametrize(
    ("group", "then", "reason"),
    [
        ("x", "restart", "no group is called 'x'"),
        ("s", "restart", "group s is not training"),
        ("b", "replace", "no standby fits b"),
    ],
)
def test_what_cannot_be_done_is_refused(run, group, then, reason):
    run.feed(Exit(run="run", worker="s-0", incarnation=1, status=0, expected=True)) if (
        then == "replace"
    ) else None
    verdict = only(Verdict, run.ask(EvictGroup(group=group, then=then)))
    assert verdict.rule == "impossible"
    assert verdict.reason.startswith(reason)


def test_a_threadlet_that_knows_no_cut_holds_nobody_up(run):
    for worker in ("a-0", "b-0"):
        run.feed(in_quorum(worker, QUORUM, actuators=("drain",)))
    told = finish(run, run.ask(EvictGroup(group="b")))
    assert issued(told) == [("c-0", Cut(quorum_id=QUORUM))]
    assert only(Outcome, told).result == "done"


def test_the_only_group_that_trains_holds_nobody_up():
    run = Run(make_kernel())
    run.feed(hello("a-0"))
    verdict = only(Verdict, run.ask(EvictGroup(group="a")))
    assert verdict.reason == "no other group trains, so none waits for a"
