import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import Migrate
from torchloom_core.testing import view_of
from torchloom_policies.straggler import StragglerPolicy

NAN = float("nan")


def policy(**options):
    return StragglerPolicy(StragglerPolicy.Options(**{"patience": 3, **options}))


def tick(policy, step_time_s, **view):
    values = np.asarray(step_time_s, dtype=float)
    return list(policy.on_tick(view_of({"step_time_s": values}, **view)))


def test_a_worker_slow_for_patience_samples_in_a_row_is_moved():
    straggler = policy()
    proposals = [tick(straggler, [1, 1, 1, 2]) for _ in range(3)]
    assert [len(p) for p in proposals] == [0, 0, 1]
    assert proposals[2][0].action == Migrate(group="g3")


def test_the_gain_is_the_time_the_run_spends_waiting():
    straggler = policy(patience=1, payback_s=100.0, confidence=0.5)
    costs = Costs(gpus_per_worker=8, migrate_s=2.0)
    (proposal,) = tick(straggler, [1, 1, 1, 4], costs=costs)
    assert proposal.gain_gpu_s == pytest.approx(0.75 * 32 * 100)
    assert proposal.cost_gpu_s == pytest.approx(2 * 32)
    assert proposal.confidence == 0.5
    assert "w3 on n3 takes 4 s a step for 1 samples, the median is 1 s" in proposal.reason


def test_one_quick_step_starts_the_count_over():
    straggler = policy()
    times = [2, 2, 1, 2, 2, 2]
    assert [len(tick(straggler, [1, 1, 1, t])) for t in times] == [0, 0, 0, 0, 0, 1]


def test_a_tick_without_a_new_sample_counts_for_nothing():
    straggler = policy()
    slow = [[NAN, 1.0], [NAN, 1.0], [NAN, 1.0], [NAN, 2.0]]
    stale = [[1.0, NAN], [1.0, NAN], [1.0, NAN], [2.0, NAN]]
    shown = [slow, stale, stale, slow, stale, slow]
    assert [len(tick(straggler, values)) for values in shown] == [0, 0, 0, 0, 0, 1]


def test_a_worker_that_stays_slow_is_proposed_again():
    straggler = policy()
    assert [len(tick(straggler, [1, 1, 1, 2])) for _ in range(7)] == [0, 0, 1, 0, 0, 1, 0]


def test_standbys_and_the_gone_neither_count_nor_are_moved():
    straggler = policy(patience=1)
    states = ["training", "training", "training", "standby", "gone"]
    assert tick(straggler, [1, 1, 1, 9, 9], state=states) == []


def test_two_slow_workers_of_one_group_move_it_once_for_the_slowest():
    groups = ["a", "a", "a", "b", "b"]
    (proposal,) = tick(policy(patience=1), [1, 1, 1, 2, 3], group=groups)
    assert proposal.action == Migrate(group="b")
    assert proposal.reason.startswith("w4")


def test_too_few_workers_have_no_median():
    assert tick(policy(patience=1), [1, 9]) == []


def test_workers_that_join_later_are_judged_too():
    straggler = policy(patience=2)
    assert tick(straggler, [1, 1, 1]) == []
    assert tick(straggler, [1, 1, 1, 5]) == []
    assert len(tick(straggler, [1, 1, 1, 5])) == 1


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_no_measurement_makes_a_price_infinite(values):
    for proposal in tick(policy(patience=1), values):
        assert 0 < proposal.gain_gpu_s < float("inf")
