import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import Alert, CollectDump, EvictGroup
from torchloom_core.testing import view_of
from torchloom_policies.hang import HangPolicy

NAN = float("nan")
COSTS = Costs(checkpoint_s=10.0, restart_s=5.0, unsaved_s=1.0, gpus_per_worker=8.0)


def policy(**options):
    return HangPolicy(HangPolicy.Options(**{"patience": 1, "memory_s": 3.0, **options}))


def tick(
    policy,
    waiting_s,
    progress_age_s=100.0,
    *,
    stopped=0.0,
    quorum=7.0,
    step_time_s=1.0,
    now_s=1_700_000_000.0,
    **view,
):
    workers = len(waiting_s)
    metrics = {
        name: np.broadcast_to(np.asarray(value, dtype=float), workers)
        for name, value in (
            ("trainer_waiting_s", waiting_s),
            ("trainer_stopped", stopped),
            ("quorum_id", quorum),
        )
    }
    steps = np.asarray(step_time_s, dtype=float)
    steps = steps if steps.ndim == 2 else np.broadcast_to(steps, (3, workers)).T
    metrics["step_time_s"] = steps
    shown = view_of(metrics, progress_age_s=progress_age_s, costs=COSTS, now_s=now_s, **view)
    return list(policy.on_tick(shown))


def ticks(policy, *args, **kwargs):
    """Return what is proposed at two ticks that show the same."""
    return [*tick(policy, *args, **kwargs), *tick(policy, *args, **kwargs)]


def actions(proposals, kind):
    return [p.action for p in proposals if isinstance(p.action, kind)]


def test_the_group_that_computes_while_the_others_wait_for_it_is_evicted():
    proposals = ticks(policy(), [90.0, 0.0, 95.0], step=[9, 7, 9])
    assert actions(proposals, CollectDump) == [CollectDump(worker="w1"), CollectDump(worker="w2")]
    assert actions(proposals, EvictGroup) == [EvictGroup(group="g1", then="restart")]
    assert not actions(proposals, Alert)
    assert "w1 on n1 computes and finished no step after 7 for 100 s" in proposals[-1].reason
    assert "2 workers of its quorum wait, w2 for 95 s" in proposals[-1].reason


def test_a_stopped_process_is_named_and_told_of_and_asked_for_nothing():
    proposals = ticks(policy(), [90.0, 0.0, 95.0], stopped=[0, 1, 0])
    assert actions(proposals, EvictGroup) == [EvictGroup(group="g1", then="restart")]
    assert actions(proposals, CollectDump) == [CollectDump(worker="w2")]
    (alert,) = actions(proposals, Alert)
    assert alert.text.startswith("w1 on n1: its process is stopped")


def test_a_stopped_process_that_was_in_a_collective_is_no_victim():
    proposals = ticks(policy(), [90.0, 2.0, 95.0], stopped=[0, 1, 0])
    assert actions(proposals, EvictGroup) == [EvictGroup(group="g1")]
    (alert,) = ticks(policy(), [0.0, 2.0, 0.0], [1.0, 100.0, 1.0], stopped=[0, 1, 0])
    assert "is stopped" in alert.reason


def test_the_gain_is_what_the_others_would_go_on_waiting():
    *_, evict = ticks(policy(would_wait_s=60.0, confidence=0.5), [90.0, 0.0, 95.0])
    assert evict.gain_gpu_s == pytest.approx(2 * 8 * 60)
    assert evict.cost_gpu_s == pytest.approx(8 * 6)
    assert evict.confidence == 0.5


def test_the_evidence_is_asked_for_a_tick_before_the_others_are_freed():
    hang = policy()
    shown = [tick(hang, [90.0, 0.0, 95.0]) for _ in range(3)]
    assert [len(actions(p, CollectDump)) for p in shown] == [2, 0, 0]
    assert [len(actions(p, EvictGroup)) for p in shown] == [0, 1, 0]


def test_a_group_that_still_hangs_is_proposed_again_after_a_while():
    hang = policy(again_s=50.0)
    times = [1000.0, 1001.0, 1002.0, 1049.0, 1050.0, 1051.0]
    proposed = [tick(hang, [90.0, 0.0, 95.0], now_s=at) for at in times]
    assert [len(actions(p, EvictGroup)) for p in proposed] == [0, 1, 0, 0, 0, 1]


def test_a_group_that_hangs_again_is_proposed_at_once():
    hang = policy(again_s=50.0)
    assert actions(ticks(hang, [90.0, 0.0, 95.0]), EvictGroup)
    assert not tick(hang, [0.0, 0.0, 0.0], 1.0)
    assert actions(ticks(hang, [90.0, 0.0, 95.0]), EvictGroup)


def test_it_takes_as_many_ticks_as_patience_says():
    hang = policy(patience=3)
    shown = [100.0, 100.0, 1.0, 100.0, 100.0, 100.0]
    proposed = [tick(hang, [90.0, 0.0, 95.0], [100.0, age, 100.0]) for age in shown]
    assert [bool(actions(p, CollectDump)) for p in proposed] == [False] * 5 + [True]


@pytest.mark.parametrize(
    ("age_s", "step_time_s", "still"),
    [
        (39.0, 1.0, False),  # least_s and a checkpoint
        (41.0, 1.0, True),
        (69.0, 20.0, False),  # three times the longest step and a checkpoint
        (71.0, 20.0, True),
    ],
)
def test_the_limit_goes_by_the_run_s_own_steps_and_leaves_time_for_a_checkpoint(
    age_s, step_time_s, still
):
    proposals = ticks(policy(), [30.0, 0.0, 30.0], age_s, step_time_s=step_time_s)
    assert bool(actions(proposals, EvictGroup)) == still


def test_one_odd_step_time_moves_the_limit_of_nobody():
    steps = [[1.0, 1.0, 1e300], [1.0, np.inf, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    assert actions(ticks(policy(), [60.0, 0.0, 60.0, 60.0], step_time_s=steps), EvictGroup)


def test_a_worker_at_its_first_step_has_more_time():
    compiles = [[1.0] * 3, [NAN] * 3, [1.0] * 3]
    hang = policy(first_step_s=500.0)
    assert not actions(ticks(hang, [90.0, 0.0, 95.0], step_time_s=compiles), EvictGroup)
    assert actions(ticks(hang, [490.0, 0.0, 495.0], 501.0, step_time_s=compiles), EvictGroup)


def test_who_hangs_for_longer_than_a_step_is_remembered_is_not_at_its_first():
    hang = policy(first_step_s=500.0)
    assert not tick(hang, [0.0, 0.0, 0.0], 0.0)
    nothing = np.full((3, 3), NAN)
    assert actions(ticks(hang, [90.0, 0.0, 95.0], step_time_s=nothing), EvictGroup)
    states = ["training", "joining", "training"]
    again = policy(first_step_s=500.0)
    tick(again, [0.0, 0.0, 0.0], 0.0)
    tick(again, [0.0, 0.0, 0.0], 0.0, step_time_s=nothing, state=states)
    assert not actions(ticks(again, [90.0, 0.0, 95.0], step_time_s=nothing), EvictGroup)


def test_where_all_wait_nobody_is_named_and_people_are_told_once():
    hang = policy()
    (alert,) = tick(hang, [90.0, 80.0, 95.0], step=[9, 7, 9])
    assert alert.action.worker == "w1"
    assert "3 workers wait and finish no step, w1 for 80 s; nobody can be named" in alert.reason
    assert not tick(hang, [91.0, 81.0, 96.0])
    assert not tick(hang, [0.0, 0.0, 0.0], 1.0)
    assert tick(hang, [91.0, 81.0, 96.0])


def test_those_who_were_freed_just_now_are_not_said_to_wait_for_nobody():
    hang = policy()
    ticks(hang, [90.0, 0.0, 95.0])
    left = {"state": ["training", "gone", "training"]}
    assert not tick(hang, [90.1, NAN, 95.1], now_s=1_700_000_001.0, **left)
    (alert,) = tick(hang, [121.0, NAN, 126.0], now_s=1_700_000_031.0, **left)
    assert "nobody can be named" in alert.reason


def test_to_wait_for_a_paused_group_or_one_that_joins_is_no_riddle():
    hang = policy()
    for state in ("paused", "joining"):
        assert not tick(hang, [90.0, 0.0, 95.0], state=["training", state, "training"])
    assert tick(hang, [90.0, 80.0, 95.0])


def test_more_who_compute_than_wait_are_too_many():
    (alert,) = tick(policy(), [90.0, 0.0, 0.0])
    assert "2 others compute or are stopped" in alert.reason
    assert len(actions(ticks(policy(), [90.0, 90.0, 0.0, 0.0]), EvictGroup)) == 2


def test_groups_that_hang_together_are_not_named():
    five, others = [0.0] * 5, [90.0] * 6
    assert len(actions(ticks(policy(), five[1:] + others), EvictGroup)) == 4
    assert not actions(ticks(policy(), five + others), EvictGroup)


def test_only_who_waits_in_the_same_quorum_waits_for_it():
    (alert,) = tick(policy(), [90.0, 0.0, 95.0], quorum=[7, 8, 7])
    assert isinstance(alert.action, Alert)
    (alert,) = tick(policy(), [90.0, 0.0, 95.0], quorum=[7, NAN, 7])
    assert isinstance(alert.action, Alert)


def test_a_group_whose_ranks_wait_for_one_of_their_own_holds_up_nobody_else():
    shown = tick(policy(), [90.0, 0.0, 0.0], [100.0, 100.0, 1.0], group=["a", "a", "b"])
    (alert,) = shown
    assert isinstance(alert.action, Alert)


def test_ranks_that_wait_for_their_own_do_not_outnumber_the_groups_that_hang():
    groups = ["a", "a", "b", "b"]
    assert not actions(ticks(policy(), [90.0, 0.0, 90.0, 0.0], group=groups), EvictGroup)
    shown = ticks(policy(), [90.0, 0.0, 0.0, 90.0], group=["a", "a", "b", "c"], quorum=[7, 7, 8, 8])
    assert actions(shown, EvictGroup) == [EvictGroup(group="b")]
    assert "; 1 workers of its quorum wait, w3 for 90 s" in shown[-1].reason


def test_who_computes_while_nobody_waits_is_left_to_others_to_report():
    assert not tick(policy(), [0.0, 0.0, 0.0], [1.0, 100.0, 1.0])


def test_who_stamps_no_waits_is_not_named():
    (alert,) = tick(policy(), [90.0, NAN, 95.0])
    assert isinstance(alert.action, Alert)


def test_of_who_stamps_no_waits_the_lighthouse_sees_who_is_silent():
    seen = {"silent": ["w1"]}
    shown = ticks(policy(), [NAN] * 3, quorum=NAN, lighthouse=seen)
    assert actions(shown, EvictGroup) == [EvictGroup(group="g1")]
    dead = {**seen, "member": ["w0", "w1", "w2"], "lost": ["w1"]}
    gone = ticks(policy(), [NAN] * 3, quorum=NAN, lighthouse=dead)
    assert not actions(gone, EvictGroup)
    says_otherwise = ticks(policy(), [90.0, 80.0, 95.0], lighthouse=seen)
    assert not actions(says_otherwise, EvictGroup)


def test_only_training_workers_hang():
    for state in ("paused", "joining", "draining", "left", "gone"):
        states = ["training", state, "training"]
        assert not actions(ticks(policy(), [90.0, 0.0, 95.0], state=states), EvictGroup)


def test_a_stand_by_takes_its_place_where_one_fits():
    states = ["training", "training", "training", "standby"]
    hang = policy(then="replace")
    (evict,) = actions(ticks(hang, [90.0, 0.0, 95.0, NAN], state=states), EvictGroup)
    assert evict.then == "replace"
    (evict,) = actions(ticks(policy(then="replace"), [90.0, 0.0, 95.0]), EvictGroup)
    assert evict.then == "restart"


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=12))
def test_no_measurement_makes_it_raise_or_a_price_infinite(rows):
    waiting_s, stopped, quorum = zip(*rows, strict=True)
    for proposal in tick(policy(), waiting_s, stopped=stopped, quorum=quorum):
        assert 0 <= proposal.gain_gpu_s < float("inf")
