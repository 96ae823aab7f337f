"""What the kernel tells a lighthouse: who is gone, what holds for good, and all of it once."""

import pytest

from tests.kernel.runs import (
    Calls,
    Run,
    active,
    hello,
    in_quorum,
    lighthouse_view,
    make_kernel,
    of,
    only,
    three_groups,
)
from torchloom_core.wire.actions import DrainGroup
from torchloom_core.wire.events import Issue, Notice, Outcome
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.steering import Expect, Leave, Order, Steer


@pytest.fixture
def run() -> Run:
    told = three_groups(make_kernel(), standby=False)
    for group in "abc":
        told.feed(in_quorum(f"{group}-0", 7))
    return told


def ended(worker: str) -> Exit:
    return Exit(run="run", worker=worker, incarnation=1, status=-9, expected=False)


def acts(outputs) -> list:
    return [steer.do for steer in of(Steer, outputs)]


def test_nothing_is_said_where_the_lighthouse_is_torchft_s(run):
    assert of(Steer, run.feed(ended("b-0"))) == []


def test_a_lighthouse_that_appears_is_told_of_to_people(run):
    notice = only(Notice, run.feed(lighthouse_view(state="restored")))
    assert notice.text == "a lighthouse is there, begun with an earlier one's state, at quorum 7"
    assert of(Notice, run.feed(lighthouse_view(quorum_id=8))) == []


def test_a_process_that_ended_is_not_waited_for(run):
    run.feed(lighthouse_view())
    steer = only(Steer, run.feed(ended("b-0")))
    assert steer.do == Leave(replicas=("b:uuid",))
    assert steer.reason == "process of b-0 has ended"


def test_what_the_lighthouse_knows_already_is_not_said(run):
    run.feed(lighthouse_view(lost=("b:uuid",)))
    assert acts(run.feed(ended("b-0"))) == []


def test_a_group_that_was_drained_is_not_waited_for(run):
    run.feed(lighthouse_view())
    command = only(Issue, run.ask(DrainGroup(group="b"))).command
    outputs = run.ack(command)
    assert acts(outputs) == [Leave(replicas=("b:uuid",))]
    assert only(Outcome, outputs).result == "done"
    assert acts(run.feed(ended("b-0"))) == []  # it has been told


def test_what_was_not_heard_is_said_again_and_what_was_is_not(run):
    run.feed(lighthouse_view())
    first = only(Steer, run.feed(ended("b-0")))
    second = only(Steer, run.feed(ended("c-0")))
    assert (first.number, second.number) == (1, 2)
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=0))) == []  # it was on its way
    late = lighthouse_view(epoch=1, number=0)
    assert of(Steer, run.feed(late, after_s=1.0)) == [first, second]
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=1))) == [second]
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=2))) == []
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=2))) == []


def test_one_that_speaks_all_the_time_is_not_answered_all_the_time(run):
    run.feed(lighthouse_view())
    run.feed(ended("b-0"))
    lives = [
        of(Steer, run.feed(lighthouse_view(incarnation=n), after_s=0.01)) for n in range(2, 100)
    ]
    assert sum(map(len, lives)) < 10
    assert of(Steer, run.feed(lighthouse_view(incarnation=100), after_s=11.0))


def test_a_lighthouse_that_starts_again_is_told_what_the_last_one_did_not_hear(run):
    run.feed(lighthouse_view())
    steer = only(Steer, run.feed(ended("b-0")))
    assert of(Steer, run.feed(lighthouse_view(incarnation=2, state="restored"))) == [steer]


def test_one_that_lost_its_state_is_told_whom_to_wait_for_and_the_last_id(run):
    run.feed(lighthouse_view(quorum_id=12))
    outputs = run.feed(lighthouse_view(incarnation=2, quorum_id=3, members=()))
    assert acts(outputs) == [Expect(names=("a", "b", "c"), above=12)]


def test_one_that_has_its_state_is_told_of_nobody(run):
    assert acts(run.feed(lighthouse_view(state="restored"))) == []


def test_the_order_of_the_config_is_said_to_each_lighthouse():
    run = Run(make_kernel(config='[lighthouse]\norder = ["b", "a"]'))
    run.feed(hello("a-0"))
    assert acts(run.feed(lighthouse_view())) == [Order(names=("b", "a"))]
    assert acts(run.feed(lighthouse_view(incarnation=2))) == [Order(names=("b", "a"))]


def test_a_refusal_is_told_once(run):
    run.feed(lighthouse_view())
    refused = lighthouse_view(refused="need the id of the last quorum, 8, was 7")
    assert "need the id" in only(Notice, run.feed(refused)).text
    assert of(Notice, run.feed(refused)) == []


def test_no_worker_speaks_for_another_group(run):
    run.feed(lighthouse_view())
    run.feed(hello("evil-0"))
    run.feed(in_quorum("evil-0", 7, replica_id="b:uuid"))
    assert acts(run.feed(ended("evil-0"))) == []
    assert acts(run.feed(ended("b-0"))) == []  # nor is it known whose it is


def test_what_an_earlier_life_says_changes_nothing_of_the_present_one(run):
    run.feed(lighthouse_view())
    run.feed(in_quorum("b-0", 9, incarnation=0, replica_id="b:earlier"))
    assert acts(run.feed(ended("b-0"))) == [Leave(replicas=("b:uuid",))]


@pytest.mark.parametrize("said", [{}, {"replica_id": "b:uuid"}, {"quorum_id": 7}])
def test_one_that_is_in_no_quorum_is_not_said_to_leave_it(said):
    run = three_groups(make_kernel(), standby=False)
    run.feed(lighthouse_view())
    run.feed(hello("b-0", **said))
    assert of(Steer, run.feed(ended("b-0"))) == []


def test_policies_see_by_row_whom_the_lighthouse_misses():
    seen = []
    run = three_groups(make_kernel([active("calls", Calls(lambda view: seen.append(view) or []))]))
    for group in "abc":
        run.feed(in_quorum(f"{group}-0", 7))
    run.tick()
    assert seen[-1].lighthouse is None
    run.feed(lighthouse_view(failed=("a:uuid",), silent=("b:uuid",), lost=("c:uuid",)))
    run.tick()
    rows = seen[-1].lighthouse
    assert rows.quorum_id == 7
    assert rows.member.tolist() == [True, True, True, False]  # the fourth stands by
    assert (rows.failed.tolist(), rows.silent.tolist(), rows.lost.tolist()) == (
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
    )
