"""Who waits, and how many nodes move."""

import numpy as np
import pytest

from tests.policies.two_roles import TICKS, fleet
from torchloom_policies.role_balance import RoleBalancePolicy

NOW_S = 1_700_000_000.0


def policy(**options):
    return RoleBalancePolicy(RoleBalancePolicy.Options(window_s=TICKS, dwell_s=100.0, **options))


def moves(balance, *args, times=(0.0, TICKS), **view):
    """Return what is proposed at the last of several ticks."""
    for after_s in times:
        proposals = list(balance.on_tick(fleet(*args, now_s=NOW_S + after_s, **view)))
    return proposals


def test_groups_of_the_role_that_waits_move_until_both_are_as_fast():
    proposals = moves(policy(), 4, 2, trainers_wait=0.75, rollouts_wait=0.0)
    # A trainer does 1 / (4 - 3) of the present throughput, a rollout worker 1 / 2: best at 2 + 4.
    assert [one.action.group for one in proposals] == ["g0", "g1"]
    assert {one.action.to for one in proposals} == {"rollout"}
    assert "with 3 and 3 workers throughput is about 1.50 times" in proposals[0].reason
    assert proposals[0].gain_gpu_s == pytest.approx(0.5 * 1800.0 * 6)
    assert proposals[0].cost_gpu_s == 30.0


def test_trainers_get_the_nodes_of_rollouts_that_wait_for_room():
    proposals = moves(policy(), 2, 4, trainers_wait=0.0, rollouts_wait=0.5)
    assert [(one.action.group, one.action.to) for one in proposals] == [("g2", "trainer")]


def test_rollouts_that_are_dropped_for_their_age_count_as_idle_time():
    proposals = moves(policy(), 2, 4, trainers_wait=0.0, rollouts_wait=0.0, dropped=2.0)
    assert [one.action.to for one in proposals] == ["trainer"]


@pytest.mark.parametrize(
    ("waits", "what"),
    [
        ((0.05, 0.05), "both wait as little"),
        ((np.nan, 0.0), "a role does not report"),
    ],
)
def test_nothing_moves_if(waits, what):
    assert not moves(policy(), 4, 2, trainers_wait=waits[0], rollouts_wait=waits[1]), what


def test_of_trainers_the_one_that_waits_longest_counts():
    waits = {"trainers_wait": [0.1, 0.75, 0.0, 0.1], "rollouts_wait": 0.0}
    proposals = moves(policy(), 4, 2, **waits)
    assert [one.action.group for one in proposals] == ["g1", "g0"]


def test_the_last_group_of_a_role_stays():
    assert not moves(policy(), 1, 5, trainers_wait=0.9, rollouts_wait=0.0)


def test_it_measures_for_a_window_anew_once_a_role_has_grown_and_rests_after_a_proposal():
    balance, waits = policy(), {"trainers_wait": 0.75, "rollouts_wait": 0.0}
    assert not moves(balance, 4, 2, times=(0.0, TICKS - 1), **waits)
    assert not moves(balance, 3, 3, times=(TICKS, 2 * TICKS - 1), **waits)
    assert moves(balance, 3, 3, times=(2 * TICKS,), **waits)
    assert not moves(balance, 3, 3, times=(2 * TICKS + 99,), **waits)
    assert moves(balance, 3, 3, times=(2 * TICKS + 100,), **waits)
