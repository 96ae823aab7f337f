"""The interval follows the measured failures, and a forecast leads to a save."""

import numpy as np
import pytest

from torchloom_core.config.schema import Costs
from torchloom_core.plugin import (
    TRAFFIC_NEEDS,
    ChangeKnob,
    Fault,
    Forecast,
    NeedFaults,
    SaveCheckpoint,
    daly_s,
    ettr,
)
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S
from torchloom_core.wire.messages import KnobSpec
from torchloom_policies.checkpoint_interval import CheckpointIntervalPolicy
from torchloom_policies.checkpoint_interval.tiers import FELT_NEEDS

HOUR_S, DAY_S = 3600.0, 86_400.0
KNOB = KnobSpec(name="checkpoint_interval_s", kind="float", low=60.0, high=20_000.0)
MEMORY = KnobSpec(name="checkpoint_memory_interval_s", kind="float", low=1.0)
REMOTE = KnobSpec(name="checkpoint_remote_interval_s", kind="float", low=1.0)
FELT = ("checkpoint_felt_s", "checkpoint_memory_felt_s", "checkpoint_remote_felt_s")
UNSAVED = ("unsaved_memory_s", "unsaved_remote_s")
METRICS = (*FELT, *UNSAVED)
COSTS = Costs(gpus_per_worker=8, checkpoint_s=30, restart_s=60, detect_s=60, unsaved_s=1800)
NODES = 10
STEP = {"step_time_s": 1.0, "wire_s": 0.5, "sent_bytes": 1e7, "state_bytes": 1e9, "round_s": np.nan}
UPLOADS = KnobSpec(name="upload_bytes_per_s", kind="float", low=0.0)


def policy(**options):
    return CheckpointIntervalPolicy(CheckpointIntervalPolicy.Options(**options))


def fleet(now_s=0.0, faults=(), interval=HOUR_S, spec=KNOB, hazard=None, unsaved=np.nan, **view):
    """Return a view of ten nodes that train and one that stands by."""
    forecasts = []
    if hazard is not None:
        forecasts = [Forecast(id="f1", predictor="trend", horizon_s=600.0, hazard=hazard)]
    n = NODES + 1
    step = {**dict.fromkeys(STEP, np.nan), **view.pop("step_metrics", {})}
    specs = [*([spec] if spec else []), *view.pop("more_knobs", [])]
    felt = view.pop("felt", {})
    values = ({spec.name: interval} if spec else {}) | view.pop("more_values", {})
    view = {"state": ["training"] * NODES + ["standby"], "costs": COSTS, **view}
    return view_of(
        {
            "unsaved_work_s": np.full(n, unsaved),
            **{name: np.full((n, 60), value) for name, value in step.items()},
            **{name: np.full(n, felt.get(name, np.nan)) for name in METRICS},
        },
        now_s=EPOCH_S + now_s,
        knob_specs=specs,
        knob_values=[values] * n,
        faults=faults,
        forecasts=forecasts,
        **view,
    )


def fault(at_s, **fields):
    fields = {"worker": "", "kind": "power", "id": f"{fields}@{at_s}", **fields}
    return Fault(ts_ns=round((EPOCH_S + at_s) * 1e9), **fields)


def exit_of(worker, at_s):
    return fault(at_s, worker=worker, node=f"n{worker[1:]}", kind="exit")


def fault_on(node, at_s, **changes):
    return fault(at_s, node=node, **changes)


def proposed(policy, *views):
    """Return the proposals for the last of the views."""
    proposals = []
    for view in views:
        proposals = list(policy.on_tick(view))
    return proposals


def mtbf_s(failures, node_days, prior_node_days=1 / 0.0065):
    return (prior_node_days + node_days) / (1 + failures) / NODES * DAY_S


def only_action(proposals):
    (proposal,) = proposals
    return proposal.action


# --- the interval ---


def test_before_any_data_the_prior_decides():
    (proposal,) = proposed(policy(), fleet())
    wanted = daly_s(save_s=30.0, mtbf_s=mtbf_s(0, 0.0))
    assert proposal.action == ChangeKnob(knob="checkpoint_interval_s", value=round(wanted, 1))
    assert proposal.action.worker is None


def test_failures_of_the_run_shorten_the_interval_as_the_posterior_says():
    faults = [exit_of(f"w{k}", 6 * HOUR_S * (k + 1)) for k in range(4)]
    ticks = [fleet(h * HOUR_S, [f for f in faults if f.ts_ns <= (EPOCH_S + h * HOUR_S) * 1e9])
             for h in range(49)]  # fmt: skip
    judge = policy(tolerance=0.001, period_s=1.0)
    (proposal,) = proposed(judge, *ticks)
    mean_s = mtbf_s(4, 20.0)
    assert proposal.action.value == pytest.approx(daly_s(save_s=30.0, mtbf_s=mean_s), abs=0.1)
    assert proposal.reason.startswith(
        "4 failures in 20.0 node-days, 0 of 0 rolled the run back: one rollback is expected every "
        f"{mean_s:.0f} s, and a save takes 30 s. "
    )
    times = {"save_s": 30.0, "mtbf_s": mean_s, "restart_s": 60.0, "detect_s": 60.0}
    gain = ettr(proposal.action.value, **times) - ettr(HOUR_S, **times)
    assert proposal.gain_gpu_s == pytest.approx(gain * 1.0 * 8 * NODES)


def value_after(*faults, **options):
    """Return the interval that is proposed an hour after the first look."""
    judge = policy(tolerance=1e-6, period_s=1e-6, **options)
    return only_action(proposed(judge, fleet(), fleet(HOUR_S, faults))).value


def test_faults_close_together_are_one_failure():
    once = value_after(exit_of("w1", 1000.0))
    assert value_after(exit_of("w1", 1000.0), exit_of("w2", 1200.0), fault_on("n1", 900.0)) == once
    assert value_after(exit_of("w1", 1000.0), exit_of("w2", 1400.0)) < once
    both = value_after(exit_of("w1", 1000.0), exit_of("w2", 1400.0), incident_s=600.0)
    assert both == once


@pytest.mark.parametrize(
    "fault",
    [exit_of("w10", 1000.0), fault_on("elsewhere", 1000.0), fault_on("n1", 1000.0, fatal=False)],
    ids=["of a standby", "of a node outside the run", "that ended nothing"],
)
def test_a_fault_that_did_not_hit_the_run_is_no_failure(fault):
    assert value_after(fault) == value_after()


def test_a_worker_that_has_left_since_counts_as_hit():
    gone = ["gone", *["training"] * (NODES - 1), "standby"]
    judge = policy(tolerance=1e-6, period_s=1e-6)
    hit = proposed(judge, fleet(), fleet(HOUR_S, [exit_of("w0", 1000.0)], state=gone))
    other = policy(tolerance=1e-6, period_s=1e-6)
    missed = proposed(other, fleet(), fleet(HOUR_S, [], state=gone))
    assert only_action(hit).value < only_action(missed).value


def test_earlier_faults_of_the_nodes_count_within_memory_s():
    history = [
        fault_on("n1", -10 * DAY_S),
        fault_on("n2", -5 * DAY_S),
        fault_on("elsewhere", -DAY_S),
    ]
    judge = policy()
    (proposal,) = proposed(judge, fleet(faults=history))
    wanted = daly_s(save_s=30.0, mtbf_s=mtbf_s(1, 10.0 * NODES))
    assert proposal.action.value == pytest.approx(wanted, abs=0.1)


def test_failures_without_a_rollback_lengthen_the_interval_again():
    hours, step_s = 48, 10.0
    faults = [exit_of(f"w{k}", 6 * HOUR_S * (k + 1) + 600) for k in range(6)]

    def ticks(lost_s):
        for hour in range(hours + 1):
            now_s = hour * HOUR_S
            known = [f for f in faults if f.ts_ns <= (EPOCH_S + now_s) * 1e9]
            yield fleet(now_s, known, step=(now_s - lost_s * len(known)) // step_s)

    def last(lost_s):
        judge = policy(tolerance=1e-6, period_s=1e-6)
        (proposal,) = proposed(judge, *ticks(lost_s))
        return proposal

    mean_s = mtbf_s(6, NODES * hours / 24)
    back, on = last(lost_s=1800.0), last(lost_s=0.0)
    assert back.action.value == pytest.approx(daly_s(save_s=30.0, mtbf_s=mean_s), abs=0.1)
    assert on.action.value == pytest.approx(daly_s(save_s=30.0, mtbf_s=7 * mean_s), abs=0.1)
    assert ", 6 of 6 rolled the run back: " in back.reason
    assert ", 0 of 6 rolled the run back: " in on.reason


def test_an_interval_near_the_optimum_stays():
    wanted = daly_s(save_s=30.0, mtbf_s=mtbf_s(0, 0.0))
    assert not proposed(policy(), fleet(interval=1.15 * wanted))
    assert proposed(policy(), fleet(interval=1.25 * wanted))
    assert proposed(policy(tolerance=0.1), fleet(interval=1.15 * wanted))


def test_the_same_is_not_proposed_again_within_the_period():
    judge = policy(period_s=2 * HOUR_S)
    assert proposed(judge, fleet())
    assert not proposed(judge, fleet(HOUR_S))
    assert proposed(judge, fleet(2 * HOUR_S))


def test_the_interval_keeps_to_the_knobs_type_and_range():
    narrow = KnobSpec(name="checkpoint_interval_s", kind="int", low=100, high=1000)
    assert only_action(proposed(policy(), fleet(spec=narrow, interval=200))) == ChangeKnob(
        knob="checkpoint_interval_s", value=1000
    )
    assert not proposed(policy(), fleet(spec=narrow, interval=1000))


@pytest.mark.parametrize(
    "view",
    [
        {"spec": None},
        {"spec": KnobSpec(name="checkpoint_interval_s", kind="choice", choices=("a",))},
        {"state": "standby"},
        {
            "costs": Costs(checkpoint_s=0),
            "spec": KnobSpec(name="checkpoint_interval_s", kind="int"),
        },
    ],
    ids=["no knob", "no number", "no worker trains", "a save costs nothing"],
)
def test_without_an_interval_to_set_there_is_no_proposal(view):
    assert not proposed(policy(), fleet(**view))


# --- tiers ---


def in_tiers(memory_s=60.0, remote_s=10_000.0, felt=(30.0, 0.5, 300.0), **view):
    """Return a view of a run with all tiers."""
    return fleet(
        more_knobs=[MEMORY, REMOTE],
        more_values={MEMORY.name: memory_s, REMOTE.name: remote_s},
        felt=dict(zip(FELT, felt, strict=True)),
        **view,
    )


def values_of(proposals):
    return {proposal.action.knob: proposal.action.value for proposal in proposals}


def test_what_a_save_was_measured_to_cost_sets_the_interval():
    (proposal,) = proposed(policy(), fleet(felt={"checkpoint_felt_s": 1.0}))
    wanted = daly_s(save_s=1.0, mtbf_s=mtbf_s(0, 0.0))
    assert proposal.action.value == pytest.approx(wanted, abs=0.1)
    assert "a save delays the run by 1 s, as measured. " in proposal.reason


def test_each_tier_has_its_own_optimum_for_the_failures_that_none_before_it_survives():
    proposals = proposed(policy(), in_tiers())
    mean_s = mtbf_s(0, 0.0)
    assert values_of(proposals) == pytest.approx(
        {
            MEMORY.name: daly_s(save_s=0.5, mtbf_s=mean_s / 0.9),
            KNOB.name: min(daly_s(save_s=30.0, mtbf_s=mean_s / 0.09), KNOB.high),
            REMOTE.name: daly_s(save_s=300.0, mtbf_s=mean_s / 0.01),
        },
        abs=0.1,
    )
    assert "one rollback that needs the tier remote (1.0%) is expected" in proposals[-1].reason


@pytest.mark.parametrize(
    ("nodes", "racks", "shorter"),
    [
        (["n1"], ["a"], {MEMORY.name}),
        (["n1", "n2"], ["a", "a"], {KNOB.name, REMOTE.name}),
        (["n1", "n2"], ["a", "b"], {KNOB.name, REMOTE.name}),
    ],
    ids=["one node", "two nodes of a rack", "two racks"],
)
def test_failures_shorten_the_interval_of_the_tier_that_they_need(nodes, racks, shorter):
    rack = ["", *racks, *[""] * (NODES - len(racks))]
    hit = [fault_on(node, 1000.0 + number) for number, node in enumerate(nodes)]
    spec = KnobSpec(name=KNOB.name, kind="float", low=60.0)

    def values(faults):
        judge = policy(tolerance=1e-6, period_s=1e-6)
        ticks = (in_tiers(now_s=s, faults=f, spec=spec, rack=rack)
                 for s, f in ((0.0, []), (HOUR_S, faults)))  # fmt: skip
        return values_of(proposed(judge, *ticks))

    before, after = values([]), values(hit)
    assert {knob for knob in before if after[knob] < 0.99 * before[knob]} == shorter


def test_a_node_fault_and_the_exits_that_it_causes_are_the_loss_of_one_node():
    faults = [fault_on("n1", 1000.0), *(exit_of(f"w{k}", 1001.0) for k in range(NODES))]
    judge = policy(tolerance=1e-6, period_s=1e-6)
    (path,) = (p for p in proposed(judge, in_tiers(), in_tiers(now_s=HOUR_S, faults=faults))
               if p.action.knob == KNOB.name)  # fmt: skip
    assert "needs the tier path (4.5%)" in path.reason


def test_all_tiers_together_keep_to_the_overhead():
    felt = 2000.0, 300.0, 9000.0
    wide = KnobSpec(name=KNOB.name, kind="float", low=1.0)
    for overhead in (0.02, 0.01):
        judge = policy(overhead=overhead, tolerance=0.1)
        often = {"memory_s": 1.0, "interval": 1.0, "remote_s": 1.0}
        values = values_of(proposed(judge, in_tiers(felt=felt, spec=wide, **often)))
        shares = [
            cost / values[knob]
            for cost, knob in zip(felt, (KNOB.name, MEMORY.name, REMOTE.name), strict=True)
            if knob in values
        ]
        assert 1.1 * sum(shares) == pytest.approx(overhead, rel=0.001)


def test_saves_that_take_more_than_the_overhead_become_rarer_though_more_work_is_lost():
    costs = {"felt": {"checkpoint_felt_s": 60.0}, "interval": 600.0}
    options = {"prior_failures_per_node_day": 10.0}
    (proposal,) = proposed(policy(**options), fleet(**costs))
    assert proposal.action.value == pytest.approx(1.2 * 60.0 / 0.035, abs=0.1)
    assert "Saves may take 3.5% of the time, and take more. " in proposal.reason
    assert "lowers the effective training time" in proposal.reason
    assert proposal.gain_gpu_s > 0
    assert not proposed(policy(**options), fleet(**{**costs, "interval": 1.05 * 60 / 0.035}))


def test_a_tier_that_was_not_measured_yet_keeps_its_interval():
    proposals = proposed(policy(), in_tiers(felt=(np.nan, np.nan, np.nan)))
    assert set(values_of(proposals)) == {KNOB.name}


def test_a_save_that_costs_less_than_a_configured_one_counts_smaller_losses_as_rollbacks():
    def reason(**view):
        judge = policy(tolerance=1e-6, period_s=1e-6)
        ticks = [fleet(s, step=s // 10, **view) for s in np.arange(0.0, 3600.0, 60.0)]
        failed = [exit_of("w1", 3590.0)]
        ticks += [fleet(3600.0 + s, failed, step=(3490 + s) // 10, **view)
                  for s in np.arange(0.0, 600.0, 60.0)]  # fmt: skip
        return proposed(judge, *ticks)[-1].reason

    assert "0 of 1 rolled" in reason()
    assert "1 of 1 rolled" in reason(felt={"checkpoint_felt_s": 0.1})


# --- a checkpoint at once ---


def saver(**options):
    return policy(predictor="trend", knob="none", **options)


def test_a_likely_failure_leads_to_a_checkpoint():
    (proposal,) = proposed(saver(), fleet(hazard={"w3": 0.5}, unsaved=900.0))
    assert proposal.action == SaveCheckpoint()
    assert proposal.confidence == pytest.approx(0.5)
    assert (proposal.gain_gpu_s, proposal.cost_gpu_s) == (900.0 * 80, 30.0 * 80)
    assert proposal.cause == ("f1",)
    assert "most likely w3 on n3" in proposal.reason


def test_a_save_that_costs_more_than_the_work_at_risk_is_not_proposed():
    assert not proposed(saver(), fleet(hazard={"w3": 0.5}, unsaved=59.0))
    assert proposed(saver(), fleet(hazard={"w3": 0.5}, unsaved=61.0))
    assert not proposed(saver(), fleet(hazard={"w10": 1.0}, unsaved=900.0))


def test_unsaved_work_that_is_not_reported_is_taken_from_the_config():
    (proposal,) = proposed(saver(), fleet(hazard={"w3": 0.5}))
    assert proposal.gain_gpu_s == 1800.0 * 80


def test_with_checkpoints_in_memory_a_failure_loses_the_work_since_the_last_of_these():
    felt = {"unsaved_memory_s": 50.0, **dict(zip(FELT, (3.0, 1.0, 500.0), strict=True))}
    at_risk = {"hazard": {"w3": 0.5}, "unsaved": 900.0, "felt": felt, "more_knobs": [MEMORY]}
    view = fleet(more_values={MEMORY.name: 1000.0}, **at_risk)
    saved = [p for p in policy(predictor="trend").on_tick(view) if p.action == SaveCheckpoint()]
    assert [(p.gain_gpu_s, p.cost_gpu_s) for p in saved] == [(50.0 * 80, 4.0 * 80)]


def test_work_that_the_next_regular_checkpoint_saves_does_not_count():
    judge = policy(predictor="trend")
    views = fleet(hazard={"w3": 0.5}, unsaved=3450.0), fleet(hazard={"w3": 0.5}, unsaved=3599.0)
    before, just_before = (
        [p for p in policy(predictor="trend").on_tick(v) if p.action == SaveCheckpoint()]
        for v in views
    )
    assert before[0].confidence == pytest.approx(1 - 0.5 ** (150 / 600))
    assert not just_before
    late = judge.on_tick(fleet(hazard={"w3": 0.5}, unsaved=4000.0))
    assert [p.confidence for p in late if p.action == SaveCheckpoint()] == [pytest.approx(0.5)]


def test_one_forecast_leads_to_one_save():
    judge = saver()
    assert proposed(judge, fleet(hazard={"w3": 0.5}, unsaved=900.0))
    assert not proposed(judge, fleet(60.0, hazard={"w3": 0.5}, unsaved=900.0))
    assert proposed(judge, fleet(61.0, hazard={"w3": 0.5, "w4": 0.5}, unsaved=900.0))
    assert proposed(judge, fleet(62.0, hazard={"w3": 0.8, "w4": 0.5}, unsaved=900.0))


def test_without_a_predictor_nothing_is_saved_and_no_forecast_is_read():
    judge = policy()
    assert judge.needs == (NeedFaults(30 * DAY_S), *TRAFFIC_NEEDS, *FELT_NEEDS)
    proposals = proposed(judge, fleet(hazard={"w3": 1.0}, unsaved=900.0))
    assert [type(proposal.action) for proposal in proposals] == [ChangeKnob]


# --- the price of an upload ---


def test_the_time_of_a_save_includes_its_upload():
    busy = {"step_metrics": STEP}  # 50 s of a network that is half busy: 25 s
    here = only_action(proposed(policy(), fleet(**busy)))
    there = only_action(proposed(policy(), fleet(**busy, more_knobs=[UPLOADS])))
    mtbf = mtbf_s(0, 0)
    assert here.value == pytest.approx(daly_s(save_s=30.0, mtbf_s=mtbf), abs=0.1)
    assert there.value == pytest.approx(daly_s(save_s=55.0, mtbf_s=mtbf), abs=0.1)


def test_an_immediate_save_costs_more_while_the_network_is_busy():
    options = {"predictor": "trend"}
    at_risk = {"hazard": {"w0": 0.5}, "unsaved": 100.0, "interval": HOUR_S, "spec": None}
    (saved,) = proposed(policy(**options), fleet(**at_risk, more_knobs=[UPLOADS]))
    assert saved.cost_gpu_s == 30.0 * 8 * NODES
    dear = fleet(**at_risk, more_knobs=[UPLOADS], step_metrics=STEP)
    assert not proposed(policy(**options), dear)
