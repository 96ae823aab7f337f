import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import ChangeKnob, DrainGroup, Fault, KnobSpec, Migrate
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S
from torchloom_policies.straggler import StragglerPolicy

NAN = float("nan")


def policy(**options):
    return StragglerPolicy(StragglerPolicy.Options(**{"patience": 3, **options}))


def tick(policy, step_time_s, compute_s=NAN, share=None, low=None, **view):
    values = np.asarray(step_time_s, dtype=float)
    own = np.broadcast_to(np.asarray(compute_s, dtype=float), values.shape)
    if share is not None:
        spec = KnobSpec(name="batch_share", kind="float", low=low, high=1.0)
        offered = [{} if value is None else {"batch_share": value} for value in share]
        view = {"knob_specs": [spec], "knob_values": offered, **view}
    return list(policy.on_tick(view_of({"step_time_s": values, "compute_s": own}, **view)))


def batch_of(proposals):
    """Return the proposed batch share by worker."""
    actions = [proposal.action for proposal in proposals]
    return {a.worker: a.value for a in actions if isinstance(a, ChangeKnob)}


def test_a_worker_slow_for_patience_samples_in_a_row_is_moved():
    straggler = policy()
    proposals = [tick(straggler, [1, 1, 1, 2]) for _ in range(3)]
    assert [len(p) for p in proposals] == [0, 0, 1]
    assert proposals[2][0].action == Migrate(group="g3")


def test_in_a_run_of_one_group_without_standby_each_slow_worker_is_named_once_per_episode():
    straggler = policy(patience=2)
    job = {"group": ["g0"] * 5}

    def named(*samples):
        times = [time_s for time_s in samples for _ in range(4)]
        proposals = [one for each in times for one in tick(straggler, each, **job)]
        return [(p.action.worker, p.reason == p.action.text) for p in proposals]

    slow, both, well = [1, 1, 1, 1, 2], [1, 1, 1, 3, 2], [1, 1, 1, 1, 1]
    assert named(slow, slow) == [("w4", True)]
    assert named(both) == [("w3", True)]
    assert named(well, slow) == [("w4", True)]
    spare = {"group": ["g0"] * 3 + ["s"] * 3, "state": ["training"] * 3 + ["standby"] * 3}
    proposals = [one for _ in range(2) for one in tick(straggler, [1, 1, 2, *[NAN] * 3], **spare)]
    assert [proposal.action for proposal in proposals] == [Migrate(group="g0")]


def test_a_move_lapses_once_the_group_has_kept_pace_for_patience_samples():
    straggler = policy(patience=2)
    (move,) = [move for _ in range(2) for move in tick(straggler, [1, 1, 1, 2])]

    def lapsed(times):
        tick(straggler, times)
        values = {"step_time_s": np.asarray(times, dtype=float), "compute_s": np.full(4, NAN)}
        return straggler.lapsed(view_of(values), move)

    steady, risen = [1, 1, 1, 2], [1.5, 1.5, 1.5, 2]
    assert [lapsed(times) for times in (steady, risen, steady, risen)] == [""] * 4
    assert lapsed([1, 1, 1, 1]) == (
        "group g3 has kept pace for 2 samples: it takes 1 s a step, the median is 1 s"
    )
    assert lapsed([1, 1, 1, NAN]) == "no step times of group g3 are known"


def test_the_gain_is_the_waiting_time_of_the_run():
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


def test_standbys_and_ended_workers_neither_count_nor_are_moved():
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


def test_workers_that_join_later_are_compared_too():
    straggler = policy(patience=2)
    assert tick(straggler, [1, 1, 1]) == []
    assert tick(straggler, [1, 1, 1, 5]) == []
    assert len(tick(straggler, [1, 1, 1, 5])) == 1


def test_the_slow_rank_is_named_even_if_all_steps_take_equally_long():
    straggler = policy(patience=1)
    (proposal,) = tick(straggler, [4, 4, 4, 4], compute_s=[1, 1, 4, 1])
    assert proposal.action == Migrate(group="g2")
    assert "w2 on n2 takes 4 s a step" in proposal.reason


def test_step_times_are_compared_if_too_few_report_their_own_time():
    (proposal,) = tick(policy(patience=1), [1, 1, 1, 4], compute_s=[1, NAN, NAN, 1])
    assert proposal.action == Migrate(group="g3")


def test_only_the_configured_metric_is_compared():
    straggler = policy(patience=1, metric="step_time_s")
    assert not tick(straggler, [4, 4, 4, 4], compute_s=[1, 1, 4, 1])


ALL = [1.0, 1.0, 1.0, 1.0]


def test_a_slow_worker_with_the_knob_gets_a_smaller_batch_first():
    costs = Costs(gpus_per_worker=8)
    straggler = policy(patience=1, payback_s=100.0)
    (proposal,) = tick(straggler, ALL, [1, 1, 1, 2], share=ALL, costs=costs)
    assert proposal.action == ChangeKnob(knob="batch_share", value=0.5, worker="w3")
    assert proposal.gain_gpu_s == pytest.approx(0.5 * 32 * 100)
    assert proposal.cost_gpu_s == pytest.approx(0.5 * 8 * 100)
    assert proposal.reason.endswith("with 0.5 of its batch instead of 1 it keeps pace")


def test_only_a_worker_that_offers_the_knob_gets_a_smaller_batch():
    (proposal,) = tick(policy(patience=1), ALL, [1, 1, 1, 2], share=[1.0, 1.0, 1.0, None])
    assert proposal.action == Migrate(group="g3")
    run_fenced = [KnobSpec(name="batch_share", kind="float", fence="run")]
    (proposal,) = tick(policy(patience=1), ALL, [1, 1, 1, 2], share=ALL, knob_specs=run_fenced)
    assert proposal.action == Migrate(group="g3")
    (proposal,) = tick(policy(patience=1, knob=""), ALL, [1, 1, 1, 2], share=ALL)
    assert proposal.action == Migrate(group="g3")


def test_a_group_is_moved_only_after_smaller_batches_did_not_help():
    straggler = policy(patience=2, tries=2)
    shares = [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    shown = [tick(straggler, ALL, [1, 1, 1, 2], share=[1.0, 1.0, 1.0, s]) for s in shares]
    assert [batch_of(p).get("w3") for p in shown] == [None, 0.5, None, 0.25, None, None]
    assert shown[-1][0].action == Migrate(group="g3")


def test_a_batch_that_cannot_be_smaller_is_no_help():
    share = [1.0, 1.0, 1.0, 0.4]
    (proposal,) = tick(policy(patience=1), ALL, [1, 1, 1, 2], share=share, low=0.4)
    assert proposal.action == Migrate(group="g3")
    assert batch_of(tick(policy(patience=1), ALL, [1, 1, 1, 2], share=ALL, low=0.7)) == {"w3": 0.7}


def test_a_worker_that_recovers_gets_its_batch_back():
    straggler = policy(patience=2)
    share = [1.0, 1.0, 1.0, 0.5]
    # At half the batch it takes as long as the others at all of it: no more is possible.
    assert [tick(straggler, ALL, [1, 1, 1, 1], share=share) for _ in range(3)] == [[], [], []]
    shown = [tick(straggler, ALL, [1, 1, 1, 0.5], share=share) for _ in range(2)]
    assert [batch_of(p) for p in shown] == [{}, {"w3": 1.0}]
    proposal = shown[1][0]
    assert proposal.gain_gpu_s == pytest.approx(0.5 * 600)
    shown = [tick(straggler, ALL, [1, 1, 1, 0.8], share=share) for _ in range(2)]
    assert batch_of(shown[1]) == {"w3": 0.62}


def test_a_worker_that_recovered_gets_smaller_batches_again():
    straggler = policy(patience=1, tries=1)
    assert batch_of(tick(straggler, ALL, [1, 1, 1, 2], share=ALL)) == {"w3": 0.5}
    assert not batch_of(tick(straggler, ALL, [1, 1, 1, 2], share=ALL))
    tick(straggler, ALL, ALL, share=ALL)
    assert batch_of(tick(straggler, ALL, [1, 1, 1, 2], share=ALL)) == {"w3": 0.5}


def test_a_group_is_drained_only_if_configured_and_no_standby_fits():
    slow = [1, 1, 1, 2, NAN]
    states = ["training"] * 4 + ["standby"]
    options = {"patience": 1, "drain_without_standby": True}
    (proposal,) = tick(policy(**options), slow, state=states)
    assert proposal.action == Migrate(group="g3")
    costs = Costs(gpus_per_worker=2, migrate_s=3, replace_s=50)
    (proposal,) = tick(policy(**options), slow[:4], costs=costs)
    assert proposal.action == DrainGroup(group="g3")
    assert proposal.cost_gpu_s == pytest.approx(8 * 3 + 2 * 50)


def test_in_a_run_with_failures_a_move_costs_the_standby_that_the_next_one_lacks():
    costs = Costs(gpus_per_worker=2, migrate_s=3, replace_s=50, inspect_s=1000, others_wait_s=100)
    states = ["training"] * 4 + ["standby"]
    crash = Fault(worker="w1", node="n1", kind="crash", ts_ns=round((EPOCH_S + 1) * 1e9), id="f")

    def price(states, faults):
        straggler = policy(patience=2)
        slow = [1, 1, 1, 2, *[NAN] * (len(states) - 4)]
        tick(straggler, slow, state=states, costs=costs)
        later = {"now_s": EPOCH_S + 1000, "faults": faults}
        (proposal,) = tick(straggler, slow, state=states, costs=costs, **later)
        return proposal.cost_gpu_s

    missed = -np.expm1(-(1050 / 1000))  # one failure in the 1,000 s so far
    assert price(states, []) == 3 * 8
    assert price(states, [crash]) == pytest.approx(3 * 8 + missed * (1050 * 2 + 100 * 6))
    assert 3 * 8 < price([*states, "standby"], [crash]) < price(states, [crash])


@example([1.0, 9e307, 9e307, 9e307])
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_no_measurement_makes_a_gain_infinite(values):
    for share in (None, [0.5] * len(values)):
        for proposal in tick(policy(patience=1), values, values, share=share):
            assert 0 < proposal.gain_gpu_s < float("inf")
