"""The acts for a lighthouse: departures, settings, and each of them once."""

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
from torchloom_core.capabilities.drain import DrainGroup
from torchloom_core.wire.decisions import Issue, Notice, Outcome
from torchloom_core.wire.messages import Exit
from torchloom_core.wire.steering import Expect, Leave, Order, Steer


@pytest.fixture
def run() -> Run:
    built = three_groups(make_kernel(), standby=False)
    for group in "abc":
        built.feed(in_quorum(f"{group}-0", 7))
    return built


def ended(worker: str) -> Exit:
    return Exit(run="run", worker=worker, incarnation=1, status=-9, expected=False)


def acts(outputs) -> list:
    return [steer.do for steer in of(Steer, outputs)]


def test_torchfts_lighthouse_gets_no_act(run):
    assert of(Steer, run.feed(ended("b-0"))) == []


def test_a_new_lighthouse_is_reported(run):
    notice = only(Notice, run.feed(lighthouse_view(state="restored")))
    assert notice.text == "a lighthouse started with restored state, at quorum 7"
    assert of(Notice, run.feed(lighthouse_view(quorum_id=8))) == []


def test_a_process_that_ended_is_not_waited_for(run):
    run.feed(lighthouse_view())
    steer = only(Steer, run.feed(ended("b-0")))
    assert steer.do == Leave(replicas=("b:uuid",))
    assert steer.reason == "process of b-0 has ended"


def test_known_departures_are_not_sent(run):
    run.feed(lighthouse_view(lost=("b:uuid",)))
    assert acts(run.feed(ended("b-0"))) == []


def test_a_group_that_was_drained_is_not_waited_for(run):
    run.feed(lighthouse_view())
    command = only(Issue, run.ask(DrainGroup(group="b"))).command
    outputs = run.ack(command)
    assert acts(outputs) == [Leave(replicas=("b:uuid",))]
    assert only(Outcome, outputs).result == "done"
    assert acts(run.feed(ended("b-0"))) == []  # it was sent already


def test_unconfirmed_acts_are_sent_again_and_confirmed_ones_are_not(run):
    run.feed(lighthouse_view())
    first = only(Steer, run.feed(ended("b-0")))
    second = only(Steer, run.feed(ended("c-0")))
    assert (first.number, second.number) == (1, 2)
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=0))) == []  # it was in flight
    late = lighthouse_view(epoch=1, number=0)
    assert of(Steer, run.feed(late, after_s=1.0)) == [first, second]
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=1))) == [second]
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=2))) == []
    assert of(Steer, run.feed(lighthouse_view(epoch=1, number=2))) == []


def test_a_lighthouse_that_reports_often_is_not_answered_each_time(run):
    run.feed(lighthouse_view())
    run.feed(ended("b-0"))
    incarnations = [
        of(Steer, run.feed(lighthouse_view(incarnation=n), after_s=0.01)) for n in range(2, 100)
    ]
    assert sum(map(len, incarnations)) < 10
    assert of(Steer, run.feed(lighthouse_view(incarnation=100), after_s=11.0))


def test_a_restarted_lighthouse_gets_the_unconfirmed_acts(run):
    run.feed(lighthouse_view())
    steer = only(Steer, run.feed(ended("b-0")))
    assert of(Steer, run.feed(lighthouse_view(incarnation=2, state="restored"))) == [steer]


def test_a_lighthouse_without_state_gets_the_expected_groups_and_the_last_id(run):
    run.feed(lighthouse_view(quorum_id=12))
    outputs = run.feed(lighthouse_view(incarnation=2, quorum_id=3, members=()))
    assert acts(outputs) == [Expect(names=("a", "b", "c"), above=12)]


def test_a_lighthouse_with_its_state_gets_no_expected_groups(run):
    assert acts(run.feed(lighthouse_view(state="restored"))) == []


def test_the_order_of_the_config_is_sent_to_each_lighthouse():
    run = Run(make_kernel(config='[lighthouse]\norder = ["b", "a"]'))
    run.feed(hello("a-0"))
    assert acts(run.feed(lighthouse_view())) == [Order(names=("b", "a"))]
    assert acts(run.feed(lighthouse_view(incarnation=2))) == [Order(names=("b", "a"))]


def test_a_refusal_is_reported_once(run):
    run.feed(lighthouse_view())
    refused = lighthouse_view(refused="need the id of the last quorum, 8, was 7")
    assert "need the id" in only(Notice, run.feed(refused)).text
    assert of(Notice, run.feed(refused)) == []


def test_a_worker_cannot_report_for_another_group(run):
    run.feed(lighthouse_view())
    run.feed(hello("evil-0"))
    run.feed(in_quorum("evil-0", 7, replica_id="b:uuid"))
    assert acts(run.feed(ended("evil-0"))) == []
    assert acts(run.feed(ended("b-0"))) == []  # its group is unknown


def test_reports_of_an_earlier_incarnation_are_ignored(run):
    run.feed(lighthouse_view())
    run.feed(in_quorum("b-0", 9, incarnation=0, replica_id="b:earlier"))
    assert acts(run.feed(ended("b-0"))) == [Leave(replicas=("b:uuid",))]


@pytest.mark.parametrize("changes", [{}, {"replica_id": "b:uuid"}, {"quorum_id": 7}])
def test_a_group_without_a_quorum_does_not_leave_it(changes):
    run = three_groups(make_kernel(), standby=False)
    run.feed(lighthouse_view())
    run.feed(hello("b-0", **changes))
    assert of(Steer, run.feed(ended("b-0"))) == []


def test_policies_see_by_row_which_workers_the_lighthouse_misses():
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
    assert rows.member.tolist() == [True, True, True, False]  # the fourth is a standby
    assert (rows.failed.tolist(), rows.silent.tolist(), rows.lost.tolist()) == (
        [True, False, False, False],
        [False, True, False, False],
        [False, False, True, False],
    )
