import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import Alert, CollectDump, EvictGroup, Note
from torchloom_core.testing import view_of
from torchloom_policies.hang import HangPolicy

NAN = float("nan")
COSTS = Costs(checkpoint_s=10.0, restart_s=5.0, unsaved_s=1.0, gpus_per_worker=8.0)


def policy(**options):
    return HangPolicy(HangPolicy.Options(**{"patience": 1, "least_s": 30.0, **options}))


def tick(
    policy,
    waiting_s,
    progress_age_s=100.0,
    *,
    stopped=0.0,
    cpu_still_s=1e4,
    stack_still_s=50.0,
    phase_left_s=NAN,
    quorum=7.0,
    step_time_s=1.0,
    now_s=1_700_000_000.0,
    dumped=(),
    fields=None,
    **view,
):
    """Show one tick: by default, a worker that does not wait is idle, its stack unchanged."""
    workers = len(waiting_s)
    metrics = {
        name: np.broadcast_to(np.asarray(value, dtype=float), workers)
        for name, value in (
            ("trainer_waiting_s", waiting_s),
            ("trainer_stopped", stopped),
            ("trainer_cpu_still_s", cpu_still_s),
            ("trainer_stack_still_s", stack_still_s),
            ("trainer_phase_left_s", phase_left_s),
            ("quorum_id", quorum),
            ("step_time_s", step_time_s),
            ("failed_steps_total", view.pop("failed", NAN)),
        )
    }
    notes = {kind: {} for kind in ("still", "phase_overrun", "dump")}
    notes["dump"] = {row: note("dump") for row in dumped}
    for kind, values in (fields or {}).items():
        notes[kind] = {row: note(kind, **values) for row in range(workers)}
    shown = view_of(
        metrics, progress_age_s=progress_age_s, costs=COSTS, now_s=now_s, notes=notes, **view
    )
    return list(policy.on_tick(shown))


def note(kind, **fields):
    return Note(run="run", worker="w", incarnation=1, kind=kind, fields=fields)


def ticks(policy, waiting_s, *args, **kwargs):
    """Return the proposals of two equal ticks; by the second the dumps have arrived."""
    first = tick(policy, waiting_s, *args, **kwargs)
    return [*first, *tick(policy, waiting_s, *args, dumped=range(len(waiting_s)), **kwargs)]


def actions(proposals, kind):
    return [p.action for p in proposals if isinstance(p.action, kind)]


def test_a_group_that_is_idle_while_the_others_wait_is_evicted():
    proposals = ticks(policy(), [90.0, 0.0, 95.0], step=[9, 7, 9])
    assert actions(proposals, CollectDump) == [CollectDump(worker="w1"), CollectDump(worker="w2")]
    assert actions(proposals, EvictGroup) == [EvictGroup(group="g1", then="restart")]
    assert not actions(proposals, Alert)
    assert proposals[-1].reason.startswith(
        "w1 on n1 finished no step after 7 for 100 s: no CPU time for 10000 s, "
        "stack unchanged for 50 s, its dump was taken; "
    )
    assert "2 workers of its quorum wait, w2 for 95 s" in proposals[-1].reason


def test_a_stopped_process_is_named_and_reported_and_not_dumped():
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


def test_the_gain_is_the_time_that_the_others_would_still_wait():
    *_, evict = ticks(policy(would_wait_s=60.0, confidence=0.5), [90.0, 0.0, 95.0])
    assert evict.gain_gpu_s == pytest.approx(2 * 8 * 60)
    assert evict.cost_gpu_s == pytest.approx(8 * 6)
    assert evict.confidence == 0.5


def test_the_dump_is_awaited_before_the_eviction():
    hang = policy()
    shown = [tick(hang, [90.0, 0.0, 95.0], dumped=rows) for rows in ((), (), (0, 2), (1,), (1,))]
    assert [len(actions(p, CollectDump)) for p in shown] == [2, 0, 0, 0, 0]
    assert [len(actions(p, EvictGroup)) for p in shown] == [0, 0, 0, 1, 0]


def test_a_dump_that_times_out_is_part_of_the_reason():
    hang, began_s = policy(dump_s=10.0), 1000.0
    shown = [tick(hang, [90.0, 0.0, 95.0], now_s=began_s + after) for after in (0, 9, 10)]
    assert [len(actions(p, EvictGroup)) for p in shown] == [0, 0, 1]
    assert ", its dump timed out after 10 s;" in shown[-1][0].reason


def test_a_group_that_still_hangs_is_proposed_again_after_a_while():
    hang = policy(again_s=50.0, dump_s=1.0)
    times = [1000.0, 1001.0, 1002.0, 1049.0, 1050.0, 1051.0]
    proposed = [tick(hang, [90.0, 0.0, 95.0], now_s=at) for at in times]
    assert [len(actions(p, EvictGroup)) for p in proposed] == [0, 1, 0, 0, 0, 1]


def test_a_group_that_hangs_again_is_proposed_at_once():
    hang = policy(again_s=50.0)
    assert actions(ticks(hang, [90.0, 0.0, 95.0]), EvictGroup)
    assert not tick(hang, [0.0, 0.0, 0.0], 1.0, failed=1)
    assert actions(ticks(hang, [90.0, 0.0, 95.0], failed=1), EvictGroup)


def test_an_eviction_lapses_once_the_group_trains_again():
    hang = policy()
    *_, evict = ticks(hang, [90.0, 0.0, 95.0])
    assert hang.lapsed(view_of(workers=3), evict) == ""
    assert tick(hang, [0.0, 0.0, 0.0], 0.5) == []
    assert hang.lapsed(view_of(workers=3), evict) == "group g1 makes progress again"


def test_a_hang_must_last_for_patience_ticks():
    hang = policy(patience=3)
    shown = [(100.0, 0), (100.0, 0), (1.0, 1), (100.0, 1), (100.0, 1), (100.0, 1)]
    proposed = [
        tick(hang, [90.0, 0.0, 95.0], [100.0, age_s, 100.0], failed=failed)
        for age_s, failed in shown
    ]
    assert [bool(actions(p, CollectDump)) for p in proposed] == [False] * 5 + [True]


def learned(longest_s, failed=(NAN, NAN), **options):
    """Return a policy that has seen all three finish a step of this length."""
    hang = policy(**options)
    tick(hang, [0.0] * 3, 0.0, step=1)
    tick(hang, [0.0] * 3, 0.0, step=2, step_time_s=longest_s, failed=failed[0])
    tick(hang, [0.0] * 3, 0.0, step=3, failed=failed[1])
    return hang


@pytest.mark.parametrize(
    ("age_s", "longest_s", "hangs"),
    [
        (39.0, 1.0, False),  # least_s and a checkpoint
        (41.0, 1.0, True),
        (69.0, 20.0, False),  # three times the longest step and a checkpoint
        (71.0, 20.0, True),
        (909.0, 5000.0, False),  # what is learned allows no more than busy_s
        (911.0, 5000.0, True),
    ],
)
def test_the_limit_follows_the_longest_step_and_includes_a_checkpoint(age_s, longest_s, hangs):
    proposals = ticks(learned(longest_s), [30.0, 0.0, 30.0], age_s, step=3)
    assert bool(actions(proposals, EvictGroup)) == hangs


def test_the_longest_step_is_shown_in_the_status_and_decays():
    hang = learned(50.0, memory_s=1000.0)
    assert hang.status == "time limit 160 s (3 x longest step 50 s, and 10 s for a checkpoint)"
    tick(hang, [0.0] * 3, 0.0, step=4, now_s=1_700_001_000.0)
    assert "3 x longest step 25 s" in hang.status
    tick(hang, [0.0] * 3, 0.0, step=5, now_s=1_700_009_000.0)
    expected = "time limit 40 s (least_s; longest step 1 s, and 10 s for a checkpoint)"
    assert hang.status == expected


def test_a_long_step_is_learned_even_if_its_time_is_not_reported():
    hang = policy()
    tick(hang, [0.0] * 3, 0.0, step=1)
    tick(hang, [0.0] * 3, 60.0, step=1, cpu_still_s=0.0)
    tick(hang, [0.0] * 3, 0.0, step=2, step_time_s=NAN)
    assert "3 x longest step 60 s" in hang.status


def test_failed_steps_and_the_first_one_are_ignored():
    assert "longest step 1 s" in learned(50.0, failed=(1.0, 1.0)).status
    hang = policy()
    tick(hang, [0.0] * 3, 800.0, step=-1, step_time_s=NAN)
    tick(hang, [0.0] * 3, 0.0, step=0, step_time_s=NAN)
    tick(hang, [0.0] * 3, 0.0, step=1)
    assert "longest step 0 s" in hang.status


def test_a_single_wrong_step_time_does_not_change_the_limit():
    hang = policy()
    for step, odd_s in enumerate((1.0, 1e300, np.inf, 1.0)):
        tick(hang, [0.0] * 4, 0.0, step=step, step_time_s=[1.0, odd_s, 1.0, 1.0])
    assert actions(ticks(hang, [60.0, 0.0, 60.0, 60.0], 60.0, step=3), EvictGroup)


def test_a_trainer_that_works_is_evicted_only_after_busy_s():
    works = {"cpu_still_s": 0.0, "stack_still_s": 0.0}
    moves = {"cpu_still_s": 1e4, "stack_still_s": 0.0}  # as in a loop that sleeps
    began_recently = {"cpu_still_s": 5.0}
    for seen in (works, moves, began_recently):
        assert not ticks(policy(), [890.0, 0.0, 890.0], 900.0, **seen), seen
    *_, evict = ticks(policy(), [915.0, 0.0, 915.0], 920.0, **works)
    expected = "it is working, but exceeds the time limit of a step, its dump was taken;"
    assert expected in evict.reason


def test_the_limit_is_longer_if_cpu_time_or_stack_is_unknown():
    for seen in ({"cpu_still_s": NAN}, {"stack_still_s": NAN}):
        assert not ticks(policy(), [290.0, 0.0, 290.0], 300.0, **seen)
        *_, evict = ticks(policy(), [305.0, 0.0, 305.0], 311.0, **seen)
        assert "its CPU time and stack are unknown" in evict.reason


def test_a_named_phase_delays_the_eviction_until_its_bound():
    where = {"still": {"at": "train.py:12 in save"}}
    overrun = where | {"phase_overrun": {"phase": "save", "at_most_s": 60.0}}
    assert not ticks(policy(), [190.0, 0.0, 190.0], 200.0, phase_left_s=1.0, fields=where)
    *_, evict = ticks(policy(), [190.0, 0.0, 190.0], 200.0, phase_left_s=-1.0, fields=overrun)
    assert "stack unchanged for 50 s in train.py:12 in save" in evict.reason
    assert ", its phase save exceeds its bound of 60 s," in evict.reason
    (alert,) = ticks(policy(), [190.0, 0.0, 190.0], 200.0, stopped=[0, 1, 0], phase_left_s=9.0)[:1]
    assert isinstance(alert.action, Alert)  # no phase explains a stopped process


def test_a_stopped_process_is_found_sooner():
    hang = policy(least_s=120.0)
    assert actions(ticks(hang, [30.0, 2.0, 30.0], 41.0, stopped=[0, 1, 0]), EvictGroup)
    quick = policy(least_s=0.5)
    assert actions(ticks(quick, [9.0, 2.0, 9.0], 11.0, stopped=[0, 1, 0]), EvictGroup)


def test_a_worker_in_its_first_steps_has_more_time():
    compiles = [1.0, NAN, 1.0]
    hang = policy(first_step_s=500.0)
    assert not actions(ticks(hang, [90.0, 0.0, 95.0], step_time_s=compiles), EvictGroup)
    assert actions(ticks(hang, [490.0, 0.0, 495.0], 511.0, step_time_s=compiles), EvictGroup)


def test_a_long_hang_does_not_count_as_the_first_steps():
    hang = policy(first_step_s=500.0)
    assert not tick(hang, [0.0, 0.0, 0.0], 0.0)
    assert actions(ticks(hang, [90.0, 0.0, 95.0], step_time_s=NAN), EvictGroup)
    states = ["training", "joining", "training"]
    again = policy(first_step_s=500.0)
    tick(again, [0.0, 0.0, 0.0], 0.0)
    tick(again, [0.0, 0.0, 0.0], 0.0, step_time_s=NAN, state=states)
    assert not actions(ticks(again, [90.0, 0.0, 95.0], step_time_s=NAN), EvictGroup)


def test_if_all_wait_no_group_is_named_and_one_alert_is_sent():
    hang = policy()
    (alert,) = tick(hang, [90.0, 80.0, 95.0], step=[9, 7, 9])
    assert alert.action.worker == "w1"
    assert "3 workers wait and finish no step, w1 for 80 s; the cause is unknown" in alert.reason
    assert not tick(hang, [91.0, 81.0, 96.0], step=[9, 7, 9])
    assert not tick(hang, [0.0, 0.0, 0.0], 1.0, failed=1)
    assert tick(hang, [91.0, 81.0, 96.0], failed=1)


def test_workers_just_freed_by_an_eviction_cause_no_alert():
    hang = policy()
    ticks(hang, [90.0, 0.0, 95.0])
    left = {"state": ["training", "gone", "training"]}
    assert not tick(hang, [90.1, NAN, 95.1], now_s=1_700_000_001.0, **left)
    (alert,) = tick(hang, [121.0, NAN, 126.0], now_s=1_700_000_031.0, **left)
    assert "the cause is unknown" in alert.reason


def test_a_wait_for_a_paused_or_joining_group_causes_no_alert():
    hang = policy()
    for state in ("paused", "joining"):
        assert not tick(hang, [90.0, 0.0, 95.0], state=["training", state, "training"])
    assert tick(hang, [90.0, 80.0, 95.0])


def test_no_group_is_named_if_more_compute_than_wait():
    (alert,) = tick(policy(), [90.0, 0.0, 0.0])
    assert "2 other workers compute or are stopped" in alert.reason
    assert len(actions(ticks(policy(), [90.0, 90.0, 0.0, 0.0]), EvictGroup)) == 2


def test_more_than_most_groups_hanging_together_are_not_named():
    five, others = [0.0] * 5, [90.0] * 6
    assert len(actions(ticks(policy(), five[1:] + others), EvictGroup)) == 4
    assert not actions(ticks(policy(), five + others), EvictGroup)


def test_only_workers_of_the_same_quorum_count_as_victims():
    (alert,) = tick(policy(), [90.0, 0.0, 95.0], quorum=[7, 8, 7])
    assert isinstance(alert.action, Alert)
    (alert,) = tick(policy(), [90.0, 0.0, 95.0], quorum=[7, NAN, 7])
    assert isinstance(alert.action, Alert)


def test_ranks_that_wait_for_their_own_group_do_not_count_as_victims():
    groups = ["a", "a", "b", "b"]
    assert not actions(ticks(policy(), [90.0, 0.0, 90.0, 0.0], group=groups), EvictGroup)
    shown = ticks(policy(), [90.0, 0.0, 0.0, 90.0], group=["a", "a", "b", "c"], quorum=[7, 7, 8, 8])
    assert actions(shown, EvictGroup) == [EvictGroup(group="b")]
    assert "; 1 workers of its quorum wait, w3 for 90 s" in shown[-1].reason


def test_a_worker_that_computes_while_none_waits_is_not_reported():
    assert not tick(policy(), [0.0, 0.0, 0.0], [1.0, 100.0, 1.0])


def test_a_worker_that_reports_no_waiting_time_is_not_named():
    (alert,) = tick(policy(), [90.0, NAN, 95.0])
    assert isinstance(alert.action, Alert)


def test_without_waiting_times_the_lighthouse_shows_the_silent_group():
    seen = {"silent": ["w1"]}
    shown = ticks(policy(), [NAN] * 3, quorum=NAN, lighthouse=seen)
    assert actions(shown, EvictGroup) == [EvictGroup(group="g1")]
    dead = {**seen, "member": ["w0", "w1", "w2"], "lost": ["w1"]}
    gone = ticks(policy(), [NAN] * 3, quorum=NAN, lighthouse=dead)
    assert not actions(gone, EvictGroup)
    contradicting = ticks(policy(), [90.0, 80.0, 95.0], lighthouse=seen)
    assert not actions(contradicting, EvictGroup)


def test_only_training_workers_hang():
    for state in ("paused", "joining", "draining", "left", "gone"):
        states = ["training", state, "training"]
        assert not actions(ticks(policy(), [90.0, 0.0, 95.0], state=states), EvictGroup)


def test_a_standby_replaces_the_group_if_one_fits():
    states = ["training", "training", "training", "standby"]
    hang = policy(then="replace")
    (evict,) = actions(ticks(hang, [90.0, 0.0, 95.0, NAN], state=states), EvictGroup)
    assert evict.then == "replace"
    (evict,) = actions(ticks(policy(then="replace"), [90.0, 0.0, 95.0]), EvictGroup)
    assert evict.then == "restart"


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=12))
def test_no_measurement_raises_or_makes_a_gain_infinite(rows):
    waiting_s, stopped, quorum = zip(*rows, strict=True)
    for proposal in tick(policy(), waiting_s, stopped=stopped, quorum=quorum):
        assert 0 <= proposal.gain_gpu_s < float("inf")
