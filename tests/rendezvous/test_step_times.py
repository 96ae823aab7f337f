"""What a step takes beyond its layers is known from heartbeats alone."""

import pytest

from torchloom_core.assignments.price import step_s
from torchloom_core.live.rendezvous.measured import Times
from torchloom_core.wire.assignment import Assignment, Stage
from torchloom_core.wire.generations import Beat, Join

JOIN = Join(worker="a", incarnation=1, store="s:1", layers=2, micro_batches=3)
ROUTE = (Stage("a", 0, 1), Stage("b", 1, 2))
FIRST = Assignment(generation=1, layers=2, routes=(ROUTE,))
LATER = Assignment(generation=2, layers=2, routes=((Stage("a", 0, 2),),))


def beats(times, present, first, step_s, pause_s=0.0):
    now_s = 0.0
    for committed in range(first, first + 200, 5):
        now_s += 5 * step_s + (pause_s if committed == first + 100 else 0.0)
        for worker in "abs":
            times.take(worker, Beat(committed=committed, layer_s=(0.1, 0.1)), now_s, present)


def test_the_part_of_a_step_beyond_its_layers_counts_in_all_assignments():
    times = Times()
    assert times.program(JOIN, FIRST).fixed_s == 0
    beats(times, FIRST, 0, 0.45, pause_s=60)
    program = times.program(JOIN, FIRST)
    assert program.fixed_s == pytest.approx(0.05)
    assert step_s(FIRST, program) == pytest.approx(0.45)
    assert step_s(LATER, times.program(JOIN, LATER)) == pytest.approx(0.65)
    times.take("a", Beat(committed=1000), 0.0, LATER)
    times.take("a", Beat(committed=2000), 0.1, LATER)
    assert times.program(JOIN, LATER).fixed_s == pytest.approx(0.05)
    beats(times, LATER, 2000, 0.7)
    assert step_s(LATER, times.program(JOIN, LATER)) == pytest.approx(0.7)
