"""Experts have holders in every generation, as long as a worker has their state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.assignments.expert_holders import (
    Loads,
    first_holders,
    next_holders,
    placed,
    restored,
)
from torchloom_core.assignments.experts import imbalance, worker_loads
from torchloom_core.assignments.price import RATES
from torchloom_core.wire.generations import ExpertLayer

WORKERS = ("a", "b", "c", "d")


def best(present, layer, tokens, token_s=1e-4, step_s=0.1):
    loads = Loads(tokens, token_s)
    return placed(present, WORKERS, [layer], loads, step_s=step_s, rates=RATES)


def test_the_first_holders_are_neighbours_and_their_copies_at_the_next_workers():
    layers = [ExpertLayer(4), ExpertLayer(2, copies=2)]
    found = first_holders(layers, ("a", "b"))
    assert found == (("a",), ("a",), ("b",), ("b",), ("a", "b"), ("b", "a"))


@given(
    held=st.fixed_dictionaries({name: st.frozensets(st.integers(0, 5)) for name in WORKERS}),
    part=st.sets(st.sampled_from(WORKERS), min_size=1),
    wanted=st.tuples(*[st.lists(st.sampled_from(WORKERS), unique=True).map(tuple)] * 6),
)
def test_an_expert_has_a_holder_if_and_only_if_a_worker_with_a_part_has_it(held, part, wanted):
    workers = tuple(sorted(part))
    found = next_holders(wanted, workers, held)
    there = frozenset().union(*(held[name] for name in part))
    assert [bool(names) for names in found] == [number in there for number in range(6)]
    assert all(set(names) <= part for names in found)


def test_the_latest_state_in_memory_is_taken_and_only_of_lost_experts():
    held = {"a": frozenset({0}), "b": frozenset()}
    mirrors = {"a": {1: 7, 2: 3}, "b": {0: 9, 1: 9}}
    assert restored(held, mirrors) == {1: ("b", 9), 2: ("a", 3)}


def test_a_lost_copy_is_made_again_and_a_lost_expert_is_not():
    present = (("a", "b"), ("c",), ())
    found, why = best(present, ExpertLayer(3, copies=2), ())
    assert found[0] == ("a", "b")
    assert len(found[1]) == 2
    assert found[2] == ()
    assert why == "lost copies of experts made again"


@pytest.mark.parametrize("per_worker", [2, 3])
def test_experts_move_where_that_pays(per_worker):
    tokens = (400.0, 390.0, 100.0, 90.0, 80.0, 70.0, 60.0, 50.0)
    present = first_holders([ExpertLayer(8)], WORKERS)
    layer = ExpertLayer(8, 1_000_000, per_worker=per_worker)
    found, why = best(present, layer, tokens)
    assert why == "experts placed by their tokens"
    after = imbalance(worker_loads(tokens, found, WORKERS))
    assert after < (1.6 if per_worker == 2 else 1.1)
    assert best(found, layer, tokens) == (found, "")  # once there, they stay
    assert best(present, layer, tokens, token_s=1e-7) == (present, "")  # 3 % of a step at least
    assert best(present, layer, ())[1] == ""  # not measured
