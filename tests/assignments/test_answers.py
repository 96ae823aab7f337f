"""What can follow on a loss: every layer has its place, and the cheapest answer comes first."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.assignments.answers import after_loss, balanced, first_assignment, with_joiners
from torchloom_core.assignments.checking import check_assignment, copies
from torchloom_core.assignments.layouts import layouts
from torchloom_core.assignments.partition import divide, smallest_maximum
from torchloom_core.assignments.price import Program, bubble, step_s
from torchloom_core.floor.errors import AssignmentError
from torchloom_core.wire.assignment import Assignment, Stage

PROGRAM = Program((0.01,) * 12, (1e6,) * 12, 4)
SIX = ("a0", "a1", "a2", "b0", "b1", "b2")


def held_by(assignment):
    return {name: frozenset(assignment.layers_of(name)) for name in assignment.workers}


def begun(*standbys):
    return first_assignment((*SIX, *standbys), PROGRAM, replicas=2, standbys=len(standbys))


def follow(assignment, *lost):
    held = held_by(assignment) | dict.fromkeys(assignment.standbys, frozenset())
    alive = [name for name in held if name not in lost]
    return after_loss(assignment, alive, {name: held[name] for name in alive}, PROGRAM)


def brute_force(costs, slowness):
    first, *others = slowness
    if not others:
        return sum(costs) * first
    return min(
        max(sum(costs[:end]) * first, brute_force(costs[end:], others))
        for end in range(1, len(costs) - len(others) + 1)
    )


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.data())
def test_the_slowest_stage_is_as_fast_as_possible(costs, data):
    slowness = data.draw(st.lists(st.floats(1, 5), min_size=1, max_size=len(costs)))
    parts = len(slowness)
    bounds = divide(costs, [frozenset()] * parts, [1.0] * len(costs), slowness)
    assert bounds[0] == 0
    assert bounds[-1] == len(costs)
    stages = [sum(costs[a:b]) for a, b in pairwise(bounds)]
    slowest = max(stage * slower for stage, slower in zip(stages, slowness, strict=True))
    assert slowest == pytest.approx(brute_force(costs, slowness), rel=1e-5)
    assert smallest_maximum(tuple(costs), tuple(slowness)) == pytest.approx(slowest, rel=1e-5)


def test_of_equal_divisions_the_one_that_copies_least_is_taken():
    held = [frozenset(range(2)), frozenset(range(2, 7))]
    assert divide([1.0] * 7, held, [1.0] * 7) == (0, 3, 7)
    assert divide([1.0] * 7, [frozenset(range(5)), frozenset({6})], [1.0] * 7) == (0, 4, 7)


def test_a_standby_comes_first_then_fewer_stages_then_a_peer_of_another_replica():
    with_one = follow(begun("s"), "a1")
    assert with_one[0].assignment.routes[0] == (
        Stage("a0", 0, 4),
        Stage("s", 4, 8),
        Stage("a2", 8, 12),
    )
    alone = follow(begun(), "a1")
    assert alone[0].assignment.routes[0] == (Stage("a0", 0, 6), Stage("a2", 6, 12))
    assert [copy.source for copy in copies(alone[0].assignment, held_by(begun()))] == ["b1"] * 4
    routes = [answer.assignment.routes for answer in alone]
    peer = (Stage("a0", 0, 4), Stage("b1", 4, 8), Stage("a2", 8, 12))
    assert peer in [route[0] for route in routes]
    assert any(route[0] == route[1] for route in routes)
    assert [a.price.lost_gpu_s for a in alone] == sorted(a.price.lost_gpu_s for a in alone)


def test_workers_of_both_replicas_are_divided_anew_where_one_has_lost_too_many():
    best = follow(begun(), "a0", "a1")[0].assignment
    assert sorted(map(len, best.routes)) == [2, 2]


def test_nothing_follows_where_all_holders_of_a_layer_are_lost():
    assert follow(begun("s"), "a1", "b1") == []
    assert begun().single_copies() == ()


@given(st.data())
def test_as_long_as_each_layer_is_held_something_follows(data):
    replicas = data.draw(st.integers(1, 3))
    workers = [f"w{n}" for n in range(data.draw(st.integers(replicas, 9)))]
    program = Program((1.0,) * 12, (1.0,) * 12, 4)
    standbys = data.draw(st.integers(0, len(workers) - replicas))
    present = first_assignment(workers, program, replicas=replicas, standbys=standbys)
    held = held_by(present) | dict.fromkeys(present.standbys, frozenset())
    lost = data.draw(st.sets(st.sampled_from(workers), max_size=len(workers) - 1))
    left = {name: layers for name, layers in held.items() if name not in lost}
    answers = after_loss(present, left.keys(), left, program)
    there = frozenset().union(*left.values())
    assert bool(answers) == (len(there) == 12)
    for answer in answers:
        check_assignment(answer.assignment)
        assert set(answer.assignment.workers) <= left.keys()
        sent = copies(answer.assignment, left)
        assert all(copy.layer in left[copy.source] for copy in sent)
        assert answer.price.copied_bytes == len(sent)


def test_a_joiner_takes_the_place_that_was_lost():
    small = follow(begun(), "a1")[0].assignment
    waits = msgspec.structs.replace(small, standbys=("new",))
    held = held_by(small) | {"new": frozenset()}
    best = with_joiners(waits, held, held, PROGRAM, stages=3)[0]
    assert [len(route) for route in best.assignment.routes] == [3, 3]
    assert best.price.lost_gpu_s < 0
    assert with_joiners(begun("new"), held, held, PROGRAM, stages=3) == []


def test_a_joiner_ends_the_sharing_of_one_route():
    route = tuple(Stage(name, 4 * n, 4 * n + 4) for n, name in enumerate("abc"))
    shared = msgspec.structs.replace(begun("new"), routes=(route, route))
    held = held_by(shared) | {"new": frozenset()}
    best = with_joiners(shared, held, held, PROGRAM, stages=2)[0]
    assert [len(route) for route in best.assignment.routes] == [2, 2]
    assert best.price.lost_gpu_s < 0


def test_layers_move_away_from_a_slow_part():
    program = PROGRAM._replace(layer_s=(*PROGRAM.layer_s[:-1], 0.03))
    present = begun()
    better = balanced(present, held_by(present), program)[0]
    assert better.price.step_s < step_s(present, program)
    assert better.price.lost_gpu_s < 0
    assert balanced(present, held_by(present), PROGRAM) == []


def test_layers_move_off_a_slow_worker():
    program = PROGRAM._replace(slowness={"b1": 3.0})
    present = begun()
    better = balanced(present, held_by(present), program)[0]
    assert len(better.assignment.layers_of("b1")) == 2
    assert better.assignment.routes[0] == present.routes[0]
    assert step_s(present, program) / better.price.step_s > 1.3


def test_a_slow_first_stage_costs_less_than_a_slow_last_one():
    present = begun()
    first, last = (PROGRAM._replace(slowness={name: 3.0}) for name in ("b0", "b2"))
    assert step_s(present, last) == pytest.approx(0.04 * (3 * 3 + 1 + 1 + 3))
    assert step_s(present, first) < 0.9 * step_s(present, last)


def test_replicas_that_share_a_worker_are_computed_one_after_the_other():
    present = begun()
    both = msgspec.structs.replace(present, routes=(present.routes[1], present.routes[1]))
    assert step_s(both, PROGRAM) == pytest.approx(2 * step_s(present, PROGRAM))
    assert bubble(present, PROGRAM) == pytest.approx(1 / 3)


def test_layouts_come_fastest_first_and_name_what_a_death_may_lose():
    found = layouts(7, PROGRAM, replicas=2)
    assert (found[0].routes, found[0].stages, found[0].standbys) == (2, 3, 1)
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
    assert {one.copies for one in found if one.routes == 1} == {1}
    assert layouts(1, PROGRAM, replicas=2)[0].step_s == pytest.approx(2 * 4 * 0.12)


@pytest.mark.parametrize(
    ("routes", "line"),
    [
        (((Stage("a", 0, 2),),), "replica 0: need all 3 layers, were 2"),
        (((Stage("a", 0, 1), Stage("b", 2, 3)),), "replica 0: need layers from 1 on at b"),
        (((Stage("a", 0, 1), Stage("a", 1, 3)),), "replica 0: a has two stages of it"),
    ],
)
def test_an_assignment_that_leaves_out_a_part_is_refused_in_one_line(routes, line):
    with pytest.raises(AssignmentError, match=line):
        check_assignment(Assignment(generation=1, layers=3, routes=routes))
