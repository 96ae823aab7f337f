"""The live comparison of checkpoint intervals judges as its README says."""

import statistics

import pytest

from experiments.checkpoint_interval_live.report import (
    CHOSEN,
    Played,
    verdicts,
    with_equal_restarts,
)
from experiments.checkpoint_interval_live.run import Scale, uptimes_s


def run(arm, seed, steps, felt_s):
    times = {"restarts_s": 20.0 + seed, "trained_s": 80.0, "step_s": 0.1}
    return Played(arm, seed, steps, **times, intervals=[1.0], felt_s=[felt_s])


@pytest.mark.parametrize(
    ("steps", "felt_s", "holds"),
    [(750, 2.8, [True, True]), (650, 2.8, [False, True]), (750, 2.9, [True, False])],
)
def test_the_chosen_interval_is_compared_with_the_best_of_the_sweep(steps, felt_s, holds):
    played = [run("1 s", seed, 600, 9.0) for seed in range(2)]
    played += [run("3 s", seed, 800 + 20 * seed, 5.0) for seed in range(2)]
    played += [run(CHOSEN, seed, steps, felt_s) for seed in range(2)]
    played = with_equal_restarts(played)
    assert {one.wall_s for one in played} == {100.5}
    found = verdicts(played)
    assert [*found.values()] == holds
    assert "best of the sweep, 3 s" in next(iter(found))


def test_each_seed_has_other_times_with_about_the_same_mean():
    scale = Scale(failures=50)
    times = [uptimes_s(scale, seed) for seed in range(3)]
    assert times[0] == uptimes_s(scale, 0)
    assert sorted(times[0]) != sorted(times[1])
    assert [statistics.mean(one) for one in times] == pytest.approx([scale.mtbf_s] * 3, rel=0.05)
