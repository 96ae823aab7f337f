"""The changes of one worker: offers, votes, and the end of each command, exactly once."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.wire.commands import Command
from torchloom_core.wire.operations import FencedChange, Rewind, SetKnobs
from torchloom_threadlet.fence.agreement import tally
from torchloom_threadlet.trainer.changes import Changes

LATE_NS = 10_000


class Rank:
    """One worker's changes, and its settled commands."""

    def __init__(self):
        self.settled = []
        self.changes = Changes(lambda *end: self.settled.append(end[:4]))

    def offer(self, number, deadline_ns=LATE_NS, cause="p1", do=None):
        operation = FencedChange(number=number, do=do or SetKnobs(values={"lr": float(number)}))
        command = Command(
            id=f"c{number}",
            run="run",
            worker="a-0",
            incarnation=1,
            epoch=1,
            issued_ns=0,
            deadline_ns=deadline_ns,
            do=operation,
            cause=cause,
        )
        self.changes.offer(command, operation)


def step(*ranks, now_ns=0, committed=True, quorum_id=1):
    """Vote, and commit or not; return the number of each rank's due change, or None."""
    ballots = [rank.changes.vote(now_ns) for rank in ranks]
    outcome = tally((0, ballot) for ballot in ballots)
    due = []
    for rank in ranks:
        rank.changes.count(*outcome)
        rank.changes.end_step(quorum_id if committed else None)
        due.append(rank.changes.due and rank.changes.due.number)
    return due


def make(rank, at_step=7):
    rank.changes.made(rank.changes.due, {"lr": 0.1}, at_step, "")


def test_a_change_offered_to_all_is_due_at_the_commit_and_applied_once_made():
    a, b = Rank(), Rank()
    a.offer(1)
    assert step(a, b) == [None, None]
    b.offer(1)
    assert step(a, b, committed=False) == [None, None]
    assert step(a, b) == [1, 1]
    assert a.settled == []
    make(a)
    assert a.settled == [("c1", "applied", 7, "")]
    assert a.changes.due is None


def test_a_later_offer_replaces_an_earlier_one_in_any_order():
    for first, second in ((1, 2), (2, 1)):
        rank = Rank()
        rank.offer(first)
        rank.offer(second)
        assert rank.settled == [("c1", "rejected", -1, "replaced by a later change")]
        assert step(rank) == [2]


def test_an_agreed_change_is_made_even_if_it_is_withdrawn_meanwhile():
    rank = Rank()
    rank.offer(1)
    assert step(rank) == [1]
    rank.changes.withdraw(1)
    assert rank.settled == []
    make(rank)
    assert rank.settled == [("c1", "applied", 7, "")]


def test_a_change_past_its_deadline_is_dropped_at_the_vote():
    rank = Rank()
    rank.offer(1, deadline_ns=5)
    assert step(rank, now_ns=6) == [None]
    assert rank.settled == [("c1", "rejected", -1, "withdrawn, or past its deadline")]


def test_the_pause_of_a_cancelled_verdict_is_cancelled():
    rank = Rank()
    rank.offer(1, cause="p1")
    rank.changes.cancel("p2")
    assert rank.settled == []
    rank.changes.cancel("p1")
    assert [end[:2] for end in rank.settled] == [("c1", "rejected")]


def test_a_change_that_fails_on_one_rank_is_rolled_back_by_all_at_the_next_vote():
    a, b = Rank(), Rank()
    for rank in (a, b):
        rank.offer(1)
    step(a, b)
    a.changes.failed(a.changes.due, 7, "no memory", rolls_back=True)
    make(b)
    assert [end[:2] for end in a.settled + b.settled] == [("c1", "failed"), ("c1", "applied")]
    step(a, b)
    assert not a.changes.must_undo  # it rolled its own values back when it failed
    assert b.changes.must_undo
    assert b.changes.before == {"lr": 0.1}
    b.changes.undone()
    assert not b.changes.must_undo


def test_a_failed_operation_without_knobs_is_not_rolled_back():
    a, b = Rank(), Rank()
    for rank in (a, b):
        rank.offer(1, do=Rewind())
    step(a, b)
    a.changes.failed(a.changes.due, 7, "no checkpoint", rolls_back=False)
    make(b)
    assert [end[:2] for end in a.settled + b.settled] == [("c1", "failed"), ("c1", "applied")]
    step(a, b)
    assert not a.changes.must_undo
    assert not b.changes.must_undo


def test_a_healed_rank_has_its_peers_knobs_and_pending_change():
    peer, joiner = Rank(), Rank()
    peer.offer(1)
    step(peer)
    make(peer)
    peer.offer(2)
    joiner.offer(1)
    assert joiner.changes.inherit(peer.changes.standing({"lr": 1.0})) == {"lr": 1.0}
    assert joiner.settled == [("c1", "applied", 7, "taken over from a peer")]
    assert step(peer, joiner) == [2, 2]
    assert joiner.changes.due.do == peer.changes.due.do
    assert joiner.changes.due.cause == "p1"


def test_a_healed_rank_does_not_vote_for_a_change_that_it_cannot_make():
    peer, joiner = Rank(), Rank()
    peer.offer(1)
    step(peer)
    make(peer)
    peer.offer(2)
    standing = peer.changes.standing({"lr": 1.0}).replace('"verb":"set_knobs"', '"verb":"odd"')
    assert joiner.changes.inherit(standing) == {"lr": 1.0}
    assert step(peer, joiner) == [None, None]


def test_a_change_taken_over_in_the_step_of_its_vote_is_acked_at_the_steps_end():
    peer, thawed = Rank(), Rank()
    for rank in (peer, thawed):
        rank.offer(1)
    step(peer)
    make(peer)
    thawed.changes.vote(0)  # with the quorum request that shows that it is behind
    thawed.changes.inherit(peer.changes.standing({"lr": 1.0}))
    thawed.changes.end_step(2)
    assert thawed.settled == [("c1", "applied", 7, "taken over from a peer")]


@pytest.mark.parametrize("text", ["", "{}", '{"fence": 7}', "null", "[]"])
def test_an_invalid_standing_changes_nothing(text):
    rank = Rank()
    rank.offer(1)
    with pytest.raises(msgspec.DecodeError):
        rank.changes.inherit(text)
    assert step(rank) == [1]


@given(
    st.lists(st.sampled_from(["offer", "again", "withdraw", "step", "fail", "lose"]), max_size=30)
)
def test_every_command_ends_at_most_once_and_is_applied_only_if_made(events):
    a, b, numbers, made = Rank(), Rank(), itertools.count(1), []
    last = 0
    for event in events:
        if event == "offer":
            last = next(numbers)
            a.offer(last)
            b.offer(last)
        elif event == "again" and last:
            a.offer(last)
        elif event == "withdraw":
            b.changes.withdraw(last)
        else:
            due = step(a, b, committed=event != "lose")
            assert due[0] == due[1]
            if due[0] is not None:
                made.append(due[0])
                for rank in (a, b):
                    if event == "fail" and rank is a:
                        rank.changes.failed(rank.changes.due, 3, "cannot", rolls_back=True)
                    else:
                        make(rank)
    for rank in (a, b):
        ended = [command for command, *_ in rank.settled]
        assert len(ended) == len(set(ended)) or "again" in events
        applied = {int(command[1:]) for command, status, *_ in rank.settled if status == "applied"}
        assert applied <= set(made)
    assert made == sorted(made)
