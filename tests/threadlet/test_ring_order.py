"""Groups in a set order of the ring, over gloo, in processes of their own."""

import itertools
import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.threadlet.ranks import Quorum, started
from torchloom_threadlet.compression import MODES
from torchloom_threadlet.compression.ordered import Ring, ring_of, with_place

NAMES = ("g0", "g1", "g2", "g3")
NUMBERS = 500_000
MUCH = 4 * NUMBERS // 4
BARE = '{"id": "x", "store": "localhost:1", "global_rank": null}'
attempts = itertools.count(1)


def handles(order, names):
    return [with_place(BARE, order, name) for name in names]


# --- the order from the handles ---------------------------------------------------------------


@given(st.permutations(NAMES), st.integers(0, 4))
def test_named_groups_come_first_in_order_and_the_others_keep_theirs(order, named):
    named_groups = [*order[:named], "stranger"]
    ranks = ring_of(handles(",".join(named_groups), NAMES)).ranks
    others = [name for name in NAMES if name not in named_groups]
    assert [NAMES[rank] for rank in ranks] == [*order[:named], *others]


ANY_HANDLE = st.one_of(
    st.text(),
    st.sampled_from(['{"torchloom_place": ' + value + "}" for value in ("-2", "1e9", "true")]),
    st.builds(lambda value: json.dumps({"torchloom_place": value}), st.integers(-1, 5)),
    st.builds(json.dumps, st.dictionaries(st.just("torchloom_place"), st.floats() | st.text())),
)


@given(st.lists(ANY_HANDLE, max_size=6))
def test_any_handles_make_a_ring_of_all(members):
    assert sorted(ring_of(members).ranks) == list(range(len(members)))


def test_torchfts_order_decides_between_equal_places():
    members = [with_place(BARE, *own) for own in (("g9,g0", "g0"), ("g1", "g1"), ("g2", "g2"))]
    assert ring_of(members).ranks == (1, 2, 0)


def test_without_a_place_in_one_handle_the_order_stays():
    members = handles("g3,g2,g1,g0", NAMES)
    assert ring_of(members).ranks == (3, 2, 1, 0)
    assert ring_of([*members[:3], BARE]).ranks == (0, 1, 2, 3)


@given(st.permutations(range(5)))
def test_by_rank_inverts_by_position(ranks):
    ring = Ring(tuple(ranks))
    assert ring.by_rank(ring.by_position("abcde")) == list("abcde")
    assert [ring.position(rank) for rank in ring.ranks] == list(range(5))
    assert ring.by_position([]) == []


# --- over gloo ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quorum():
    with started(30.0, ranks=4) as quorum:
        for name, number in zip(NAMES, range(4), strict=True):
            quorum.one(number, "named", group=name)
        yield quorum


@pytest.fixture
def four(quorum):
    """Return a quorum of all in torchft's order: the last test's, if it is complete."""
    if quorum.members != quorum.ranks:
        gather(quorum, "", 0, 1, 2, 3)
    reorder(quorum, "")
    quorum.all("mode", mode="none")
    quorum.all("end_step", committed=False)
    return quorum


def reorder(quorum, *orders):
    """Give each member an order of its own, or all the same one; then reorder."""
    orders = orders * len(quorum.members) if len(orders) == 1 else orders
    pairs = zip(quorum.members, orders, strict=True)
    members = [quorum._one(rank, "order", order=order) for rank, order in pairs]
    assert set(quorum.all("reorder", handles=members, attempt=next(attempts))) == {""}


def gather(quorum, order, *numbers):
    for number in numbers:
        quorum.handles[number] = quorum.one(number, "order", order=order)
    quorum.gather(*numbers)


def neighbours(quorum):
    """Return which rank sends most of an allreduce to which, by the sockets' counters."""
    before = quorum.all("links")
    quorum.all("reduced", shape=[NUMBERS], fill=1.0)
    after = quorum.all("links")
    at = {  # by both ends, as connections to different ports may have one port of their own
        (link[0], link[1]): NAMES[quorum.ranks.index(r)]
        for r, own in zip(quorum.members, after, strict=True)
        for link in own
    }
    found = set()
    for then, now in zip(before, after, strict=True):
        moved = {(own, peer): sent for own, peer, sent in then}
        found |= {
            (at[own, peer], at[peer, own])
            for own, peer, sent in now
            if sent - moved[own, peer] > MUCH / 2
        }
    return found


def ring(*names):
    """Return the pairs of a ring; in gloo's each rank sends to the one before."""
    return {(own, names[place - 1]) for place, own in enumerate(names)}


@pytest.mark.long
@pytest.mark.integration
def test_neighbours_in_the_ring_follow_the_requested_order(four):
    assert neighbours(four) == ring("g0", "g1", "g2", "g3")
    reorder(four, "g2,g0,g3,g1")
    assert neighbours(four) == ring("g2", "g0", "g3", "g1")
    reorder(four, "stranger,g3,g1")
    assert neighbours(four) == ring("g3", "g1", "g0", "g2")
    reorder(four, "")
    assert neighbours(four) == ring("g0", "g1", "g2", "g3")


@pytest.mark.integration
def test_all_ranks_have_the_same_bits_in_any_order(four):
    for order in ("g3,g0", "g1,g2,g3,g0", "g2,g1"):
        reorder(four, order)
        for step, mode in enumerate(MODES):
            four.all("mode", mode=mode)
            four.agree("step", seed=step, shapes=[[4099], [64, 130], [10]])
            assert four.agree("reduced", shape=[3], fill=1.5) == [6.0, 6.0, 0]


@pytest.mark.integration
def test_a_rank_number_means_the_same_peer_in_any_order(four):
    def answers():
        for number, rank in enumerate(four.members):
            rank.ask("collectives", rank=number, ranks=4)
        return [rank.answer() for rank in four.members]

    plain = answers()
    for rank, (root, gathered, flat, even, uneven, passed) in enumerate(plain):
        assert (root, gathered, flat, passed) == ([1], [0, 1, 2, 3], [0, 1, 2, 3], [(rank - 1) % 4])
        assert even == [10 * peer + rank for peer in range(4)]
        assert uneven == [10 * peer + 1 + rank for peer in range(4) for _ in range(1 + rank)]
    reorder(four, "g2,g0,g3,g1")
    assert answers() == plain


@pytest.mark.integration
def test_groups_with_different_orders_still_form_one_ring(four):
    reorder(four, "g1,g0", "g1,g0", "g2", "")  # places 1, 0, 0, none
    assert neighbours(four) == ring("g1", "g2", "g0", "g3")
    four.agree("step", seed=1, shapes=[[5000]])


@pytest.mark.integration
def test_a_new_quorum_has_the_order_at_once_and_a_joiner_without_one_comes_last(four):
    gather(four, "g2,g1,g0", 0, 1, 2)
    assert neighbours(four) == ring("g2", "g1", "g0")
    four.handles[3] = four.one(3, "order", order="")
    gather(four, "g3,g2,g1,g0", 0, 1, 2)
    four.gather(0, 1, 2, 3)
    assert neighbours(four) == ring("g2", "g1", "g0", "g3")
    reorder(four, "g3,g1,g2,g0")  # it has inherited it
    assert neighbours(four) == ring("g3", "g1", "g2", "g0")
    gather(four, "g3,g1,g2,g0", 3, 1, 0)
    assert neighbours(four) == ring("g3", "g1", "g0")
    four.agree("step", seed=2, shapes=[[5000]])


@pytest.mark.integration
def test_unsent_parts_are_sent_in_another_order(four):
    four.all("mode", mode="topk")
    four.all("step", seed=6, shapes=[[6000]])
    reorder(four, "g3,g1,g2,g0")
    least, most, _ = four.agree("reduced", shape=[6000], fill=0.0)
    assert least < -1.0
    assert most > 1.0


@pytest.mark.long
@pytest.mark.integration
def test_connections_made_for_an_order_can_be_cut(four):
    reorder(four, "g3,g1,g2,g0")
    four.all("mode", mode="int8")
    four.one(0, "begin", numbers=[50_000])
    assert four.one(0, "cut", uuid=Quorum.uuid).startswith("3 connections")
    assert "Connection closed" in four.one(0, "ended")[0]
    four.members = []


@pytest.mark.long
@pytest.mark.integration
def test_a_missing_peer_fails_the_reorder_in_time_and_the_next_quorum_works():
    with started(60.0, ranks=3) as quorum:
        for number in range(3):
            quorum.one(number, "named", group=NAMES[number])
            quorum.handles[number] = quorum.one(number, "order", order="")
        quorum.gather(0, 1, 2)
        members = [quorum.one(number, "order", order="g2,g1,g0") for number in range(3)]
        quorum.ranks[2].process.send_signal(signal.SIGSTOP)
        quorum.members = quorum.ranks[:2]
        quorum.all("patience", timeout_s=2.0)
        refused = quorum.all("reorder", handles=members, attempt=1)
        assert all("need an answer" in why for why in refused)
        quorum.all("patience", timeout_s=60.0)
        assert quorum.one(0, "refused", numbers=5000) == "process group not initialized"
        gather(quorum, "g1,g0", 0, 1)
        quorum.agree("step", seed=1, shapes=[[5000]])
