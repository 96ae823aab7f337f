"""Experts are placed by load, replicated if hot, and remapped after a loss."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom_core.assignments.experts import (
    after_loss,
    imbalance,
    mirrors,
    place,
    price_of_moves,
    replicate,
    worker_loads,
)
from torchloom_core.floor.errors import AssignmentError

WORKERS = ("a", "b", "c", "d")
LOADS = st.lists(st.integers(0, 200), min_size=1, max_size=8)


def largest(loads, holders, workers=WORKERS):
    return max(worker_loads(loads, holders, workers))


def exhaustive(loads, per_worker):
    """Return the largest load of the best placement, of all there are."""
    best = sum(loads)
    for chosen in product(range(4), repeat=max(len(loads) - 1, 0)):
        at = (0, *chosen)  # the workers are alike: where the first expert is does not matter
        if max(map(at.count, at)) <= per_worker:
            totals = [0, 0, 0, 0]
            for load, worker in zip(loads, at, strict=True):
                totals[worker] += load
            best = min(best, max(totals))
    return best


def copies(holders, present):
    return sum(len(set(after) - set(now)) for after, now in zip(holders, present, strict=True))


@settings(max_examples=30, deadline=None)
@given(LOADS, st.integers(2, 4), st.randoms(use_true_random=False))
def test_a_placement_is_within_5_percent_of_the_best_of_all(loads, per_worker, random):
    best = exhaustive(loads, per_worker)
    at = random.sample([worker for worker in WORKERS for _ in range(per_worker)], len(loads))
    present = tuple((worker,) for worker in at)
    assert largest(loads, place(loads, WORKERS, per_worker)) == best
    moved = place(loads, WORKERS, per_worker, present)
    assert all(len(held) == 1 for held in moved)
    assert max(sum((w,) == held for held in moved) for w in WORKERS) <= per_worker
    assert largest(loads, moved) <= 1.05 * best
    if largest(loads, present) <= best:
        assert moved == present


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 1000), min_size=32, max_size=128), st.integers(2, 16))
def test_many_experts_exceed_the_mean_by_less_than_the_most_loaded(loads, count):
    workers = [f"w{n}" for n in range(count)]
    per_worker = -(-len(loads) // count)
    holders = place(loads, workers, per_worker)
    assert largest(loads, holders, workers) <= sum(loads) / count + max(loads)
    assert max(sum((w,) == held for held in holders) for w in workers) <= per_worker


def test_few_experts_move():
    loads = [40, 10, 20, 20, 20, 20, 15, 15]
    present = (("a",), ("a",), ("b",), ("b",), ("c",), ("c",), ("d",), ("d",))
    holders = place(loads, WORKERS, 3, present)
    assert largest(loads, holders) == 40
    assert copies(holders, present) == 1
    assert place(loads, ("a", "b", "c"), 3, present)  # d is gone


def test_experts_that_do_not_fit_are_refused_in_one_line():
    with pytest.raises(AssignmentError, match="need 9 places, were 4 workers x 2"):
        place([1.0] * 9, WORKERS, 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=8, max_size=8), st.integers(0, 2))
def test_replicas_never_raise_the_largest_load_and_keep_every_expert(loads, each):
    present = tuple((WORKERS[n // 2],) for n in range(8))
    holders = replicate(loads, present, dict.fromkeys(WORKERS, each))
    assert largest(loads, holders) <= largest(loads, present)
    assert all(held and len(set(held)) == len(held) for held in holders)
    assert all(sum(w in held for held in holders) <= 2 + each for w in WORKERS)


def test_a_hot_expert_gets_a_second_holder_and_cold_ones_are_packed():
    loads = [70, 30, 10, 10, 10, 10, 10, 10]
    present = tuple((WORKERS[n // 2],) for n in range(8))
    assert imbalance(worker_loads(loads, present, WORKERS)) > 2
    holders = replicate(loads, present, dict.fromkeys(WORKERS, 1))
    assert len(holders[0]) > 1
    assert sum(len(held) > 1 for held in holders) == 1
    assert imbalance(worker_loads(loads, holders, WORKERS)) <= 1.15


def test_an_expert_without_a_holder_stays_left_out():
    assert replicate([5, 5], ((), ("a",)), {"b": 2})[0] == ()


def test_a_lost_worker_leaves_copies_mirrors_or_nothing():
    holders = (("a",), ("a", "b"), ("b",), ())
    mirrored = mirrors(holders, ("a", "b", "c"))
    assert mirrored == ("b", "", "c", "")
    assert after_loss(holders, {"a"}) == ((), ("b",), ("b",), ())
    assert after_loss(holders, {"a"}, mirrored) == (("b",), ("b",), ("b",), ())
    assert after_loss(holders, {"a", "b"}, mirrored) == ((), (), ("c",), ())


def test_mirrors_of_one_holder_are_spread():
    assert mirrors((("a",), ("a",), ("a",)), WORKERS) == ("b", "c", "d")
    assert mirrors((("a",),), ("a",)) == ("",)


def test_a_move_pays_once_the_time_saved_exceeds_the_transfer():
    present, proposed = (("a",), ("a",), ("b",)), (("a",), ("b",), ("b",))
    moves = price_of_moves(
        present, proposed, [3, 1, 1], expert_s=0.1, expert_bytes=1e6, bytes_per_s=1e7
    )
    assert moves.copies == 1
    assert moves.transfer_s == pytest.approx(0.1)
    assert moves.saved_s == pytest.approx(0.025)
    assert moves.pays_after_steps == pytest.approx(4)
    back = price_of_moves(
        proposed, present, [3, 1, 1], expert_s=0.1, expert_bytes=1e6, bytes_per_s=1e7
    )
    assert back.pays_after_steps == float("inf")


def test_no_load_is_balanced():
    assert imbalance([0, 0]) == 1
