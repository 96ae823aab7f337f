"""Invariants of every quorum, for any calls in any order."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from torchloom_core.live.lighthouse import quorum as quorum_module
from torchloom_core.live.lighthouse.membership import Member, Rules, SavedState
from torchloom_core.live.lighthouse.quorum import Electorate
from torchloom_core.wire.steering import Evict, Expect, HoldBack, Leave, Order

RULES = Rules(min_replicas=1, join_timeout_s=10.0, heartbeat_timeout_s=5.0)
NAMES = ("a", "b", "c", "d")
replicas = st.sampled_from([f"{name}:{number}" for name in NAMES for number in (1, 2)])


def asks(electorate, *replica_ids, now_s=0.0, **fields):
    for replica_id in replica_ids:
        electorate.request(Member(b"", replica_id, **fields), now_s)


def of(*members: str, quorum_id=7, **more) -> SavedState:
    return SavedState(quorum_id=quorum_id, members=members, **more)


def ids(quorum) -> Iterable[str] | None:
    return quorum and sorted(quorum.ids)


class AnyHistory(RuleBasedStateMachine):
    """Random calls of Managers and a Weaver; the lighthouse is restarted at random."""

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self.electorate = Electorate(RULES, SavedState(quorum_id=0), self.now_s)
        self.ids_given = [0]
        self.out = set()  # evicted or left, without a request since
        self.held = frozenset()
        self.lost = set()
        self.requests = ()

    @rule(replica_id=replicas, failures=st.sampled_from([0, 0, 1]), step=st.integers(0, 2))
    def ask(self, replica_id, failures, step):
        raw = f"{replica_id} {step} {failures}".encode()
        self.electorate.request(Member(raw, replica_id, step, False, failures), self.now_s)
        self.out.discard(replica_id)
        self.lost.discard(replica_id)

    @rule(replica_id=replicas)
    def beat(self, replica_id):
        waits = replica_id in self.electorate.requests
        self.electorate.beat(replica_id, self.now_s)
        self.lost.discard(replica_id)
        if waits and replica_id not in self.electorate.aside:
            self.out.discard(replica_id)

    @rule(replica_id=replicas)
    def end(self, replica_id):
        self.electorate.mark_lost(replica_id)
        self.lost.add(replica_id)

    @rule(seconds=st.sampled_from([0.1, 1.1, 6.0, 11.0]))
    def pass_time(self, seconds):
        self.now_s += seconds

    @rule(replica_id=replicas)
    def leave(self, replica_id):
        assert self.electorate.steer(Leave(replicas=(replica_id,)), self.now_s) == ""
        self.out.add(replica_id)

    @rule(replica_id=replicas, off=st.sampled_from([0, 0, -1, 1]))
    def evict(self, replica_id, off):
        quorum_id = self.electorate.quorum_id + off
        members = self.electorate.members or ()
        act = Evict(replicas=(replica_id,), quorum_id=quorum_id)
        refused = self.electorate.steer(act, self.now_s)
        assert bool(refused) == (off != 0 or replica_id not in members)
        if not refused:
            self.out.add(replica_id)

    @rule(names=st.sets(st.sampled_from(NAMES), max_size=2))
    def hold(self, names):
        self.held = frozenset(names)
        assert self.electorate.steer(HoldBack(names=tuple(names)), self.now_s) == ""

    @rule()
    def restart(self):
        saved = self.electorate.saved_state()
        self.electorate = Electorate(RULES, saved, self.now_s, requests=self.requests)
        self.lost.clear()

    @rule()
    def form(self):
        before, now_s = self.electorate.members, self.now_s
        answered_before = self.electorate.quorum_id
        chosen, _ = self.electorate._chosen(now_s)
        quorum = self.electorate.form(now_s)
        assert chosen is None or quorum is not None, "the look in passing missed a quorum"
        if quorum is None:
            return
        assert quorum.quorum_id == self.electorate.quorum_id >= max(self.ids_given)
        same = quorum.ids == before and quorum.quorum_id == answered_before
        assert same or quorum.quorum_id > max(self.ids_given)
        self.ids_given.append(quorum.quorum_id)
        assert not quorum.ids & self.out
        assert not quorum.ids & self.lost
        assert not {r.partition(":")[0] for r in quorum.ids} & self.held
        self.requests = quorum.members

    @invariant()
    def memory_is_bounded(self):
        assert len(self.electorate.aside) <= quorum_module._MOST_ASIDE


TestAnyHistory = AnyHistory.TestCase


def test_a_new_request_lifts_leave_and_evict():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    electorate.steer(Leave(replicas=("a:1",)), 0.0)
    electorate.steer(Evict(replicas=("b:1",), quorum_id=7), 0.0)
    assert electorate.aside == ("a:1", "b:1")
    asks(electorate, "a:1", "b:1")
    assert electorate.aside == ()
    assert ids(electorate.form(0.0)) == ["a:1", "b:1"]


def test_a_group_that_left_or_was_evicted_is_not_awaited():
    electorate = Electorate(RULES, of("a:1", "b:1", "c:1"), 0.0)
    asks(electorate, "a:1")
    assert electorate.form(0.0) is None
    electorate.steer(Leave(replicas=("b:1",)), 0.0)
    assert electorate.form(0.0) is None
    electorate.steer(Evict(replicas=("c:1",), quorum_id=7), 0.0)
    assert ids(electorate.form(0.0)) == ["a:1"]


def test_a_heartbeat_in_flight_does_not_restore_a_group_set_aside():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    electorate.steer(Leave(replicas=("b:1",)), 0.0)
    electorate.beat("b:1", 0.1)
    asks(electorate, "a:1", now_s=0.1)
    assert ids(electorate.form(0.1)) == ["a:1"]


def test_a_group_set_aside_while_it_waits_is_back_with_its_next_heartbeat():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    asks(electorate, "b:1")
    electorate.steer(Leave(replicas=("b:1",)), 0.0)
    electorate.beat("b:1", 1.0)
    asks(electorate, "a:1", now_s=1.0)
    assert ids(electorate.form(1.0)) == ["a:1", "b:1"]


def test_a_group_held_back_waits_and_is_in_the_next_quorum_once_admitted():
    electorate = Electorate(RULES, of("a:1"), 0.0)
    electorate.steer(HoldBack(names=("b",)), 0.0)
    asks(electorate, "b:1", "a:1")
    assert ids(electorate.form(0.0)) == ["a:1"]
    electorate.request_again(Member(b"", "b:1"), 0.0)
    assert electorate.held == ("b:1",)
    electorate.steer(HoldBack(names=()), 1.0)
    asks(electorate, "a:1", now_s=1.0)
    assert ids(electorate.form(1.0)) == ["a:1", "b:1"]


def test_after_a_restart_no_group_trains_without_the_members_of_the_last_quorum():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    asks(electorate, "a:1", now_s=0.5)
    assert electorate.form(0.5) is None
    asks(electorate, "b:1", now_s=4.0)
    assert electorate.form(4.0).quorum_id == 7


def test_after_a_restart_a_silent_half_has_the_heartbeat_timeout():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    asks(electorate, "a:1", now_s=0.1)
    assert electorate.form(4.9) is None
    electorate.beat("a:1", 4.9)
    assert ids(electorate.form(5.1)) == ["a:1"]


def test_after_a_restart_a_silent_minority_has_a_second_once_the_others_are_there():
    electorate = Electorate(RULES, of("a:1", "b:1", "c:1"), 0.0)
    asks(electorate, "a:1", now_s=1.0)
    asks(electorate, "b:1", now_s=2.0)
    assert electorate.form(2.9) is None
    quorum = electorate.form(3.1)
    assert ids(quorum) == ["a:1", "b:1"]
    assert quorum.quorum_id == 8


def requests(*replica_ids, step=3):
    return tuple(Member(f"{r} at {step}".encode(), r, step) for r in replica_ids)


def restarted(*, asked_again, alive=(), members=("a:1", "b:1", "c:1")):
    """A lighthouse that ended as it answered a quorum; time is 2 s after its start."""
    electorate = Electorate(RULES, of(*members), 0.0, requests=requests(*members))
    for replica_id in alive:
        electorate.beat(replica_id, 0.1)
    for member in asked_again:
        electorate.request(member, 0.1)
    return electorate


def test_a_group_not_answered_before_a_restart_gets_the_same_quorum():
    electorate = restarted(asked_again=requests("a:1", "b:1"), alive=["c:1"])
    assert electorate.form(0.5) is None
    quorum = electorate.form(2.0)
    assert quorum.quorum_id == 7
    assert quorum.members == requests("a:1", "b:1", "c:1")
    assert not electorate.requests


@pytest.mark.parametrize(
    ("asked_again", "alive"),
    [
        (requests("a:1", "b:1", step=4), ["c:1"]),
        ((*requests("a:1"), *requests("b:1", step=4)), ["c:1"]),
        (requests("x:1"), ["a:1", "b:1", "c:1"]),
    ],
    ids=["all are further", "one is further", "a stranger"],
)
def test_a_quorum_that_is_over_is_not_given_out_again(asked_again, alive):
    assert restarted(asked_again=asked_again, alive=alive).form(2.0) is None


def test_a_quorum_with_an_ended_member_is_not_sent_again():
    electorate = restarted(asked_again=requests("a:1", "b:1"))
    assert ids(electorate.form(2.0)) == ["a:1", "b:1"]
    electorate = restarted(asked_again=requests("a:1"), alive=["b:1", "c:1"])
    electorate.mark_lost("c:1")
    assert electorate.form(2.0) is None


def test_after_a_new_quorum_the_previous_processs_is_not_sent_again():
    electorate = restarted(asked_again=requests("a:1", "b:1", "c:1"))
    assert electorate.form(0.2).quorum_id == 7
    electorate.request(*requests("a:1"), 0.3)
    assert electorate.form(2.0) is None


def test_ids_begin_above_all_that_the_previous_process_may_have_used():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0, lowest_id=100)
    asks(electorate, "a:1", "b:1")
    assert electorate.form(0.0).quorum_id == 7
    asks(electorate, "a:1", "b:1", "c:1")
    assert electorate.form(0.0).quorum_id == 100


def test_time_in_which_the_lighthouse_did_not_run_is_no_silence():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    electorate.beat("b:1", 1.0)
    electorate.exclude(8.0)
    asks(electorate, "a:1", now_s=9.5)
    assert electorate.form(9.5) is None


def test_a_lighthouse_without_state_waits_for_heartbeats_before_it_forms_a_quorum():
    electorate = Electorate(RULES, SavedState(quorum_id=0), 0.0)
    electorate.delay_until(1.0)
    asks(electorate, "a:1", now_s=0.2)
    assert electorate.form(0.2) is None
    assert "waiting for heartbeats" in electorate.why(0.2)
    electorate.beat("b:1", 0.3)
    assert electorate.form(1.1) is None
    asks(electorate, "b:1", now_s=1.2)
    assert ids(electorate.form(1.2)) == ["a:1", "b:1"]


def test_an_expected_group_is_awaited_for_the_given_time():
    electorate = Electorate(RULES, SavedState(quorum_id=3), 0.0)
    electorate.steer(Expect(names=("a", "b"), above=50, for_s=5.0), 0.0)
    asks(electorate, "a:1", now_s=1.0)
    assert electorate.form(1.0) is None
    assert "waiting for b" in electorate.why(1.0)
    asks(electorate, "b:1", now_s=2.0)
    assert electorate.form(2.0).quorum_id == 51


def test_no_group_is_expected_after_a_quorum():
    electorate = Electorate(RULES, of("a:1"), 0.0)
    refused = electorate.steer(Expect(names=("b",)), 0.0)
    assert refused == "need a lighthouse without a quorum, was at 7"


def test_evict_names_members_of_the_last_quorum_by_its_id():
    electorate = Electorate(RULES, of("a:1"), 0.0)
    assert electorate.steer(Evict(replicas=("a:1",), quorum_id=6), 0.0) == (
        "need the id of the last quorum, 7, was 6"
    )
    assert electorate.steer(Evict(replicas=("b:1",), quorum_id=7), 0.0) == (
        "need members of quorum 7, was 'b:1'"
    )
    assert electorate.aside == ()


def test_a_new_order_of_ranks_takes_a_new_id_so_that_all_configure_anew():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    electorate.steer(Order(names=("b", "a")), 0.0)
    electorate = Electorate(RULES, electorate.saved_state(), 0.0)
    asks(electorate, "a:1", "b:1")
    assert electorate.form(0.0).quorum_id == 8
    asks(electorate, "a:1", "b:1")
    assert electorate.form(0.0).quorum_id == 8


@given(st.integers(1, 3000))
def test_names_that_left_for_good_are_forgotten_in_the_end(count):
    electorate = Electorate(RULES, SavedState(quorum_id=0), 0.0)
    for number in range(count):
        electorate.steer(Leave(replicas=(f"a:{number}",)), 0.0)
    assert len(electorate.aside) == min(count, quorum_module._MOST_ASIDE)
    assert f"a:{count - 1}" in electorate.aside


def test_no_more_groups_are_known_than_a_message_may_name(monkeypatch):
    monkeypatch.setattr(quorum_module, "MAX_REPLICAS", 3)
    electorate = Electorate(RULES, SavedState(quorum_id=0), 0.0)
    for name in "abc":
        assert electorate.has_room_for(name, 0.0)
        electorate.beat(name, 0.0)
    assert not electorate.has_room_for("d", 1.0)
    assert electorate.has_room_for("a", 1.0)
    assert electorate.has_room_for("d", 6.0)


def test_a_request_does_not_outlive_its_caller():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    asks(electorate, "b:1")
    electorate.mark_lost("b:1")
    electorate.beat("b:1", 1.0)
    asks(electorate, "a:1", now_s=1.0)
    assert electorate.form(1.0) is None


def test_a_quorum_is_not_sent_again_while_a_member_has_sent_no_heartbeat():
    electorate = restarted(asked_again=requests("a:1"), members=("a:1", "b:1"))
    assert electorate.form(2.0) is None


def test_a_group_that_left_is_not_awaited_after_a_restart_either():
    electorate = Electorate(RULES, of("a:1", "b:1"), 0.0)
    electorate.steer(Leave(replicas=("b:1",)), 0.0)
    electorate = Electorate(RULES, electorate.saved_state(), 10.0)
    asks(electorate, "a:1", now_s=10.1)
    electorate.beat("b:1", 10.1)
    assert ids(electorate.form(10.1)) == ["a:1"]


def test_a_standby_that_died_unseen_keeps_no_lighthouse_alive():
    electorate = Electorate(RULES, SavedState(quorum_id=0), 0.0)
    electorate.beat("a:1", 0.0)
    assert not electorate.is_empty(0.1)
    assert electorate.is_empty(RULES.heartbeat_timeout_s + 0.1)
