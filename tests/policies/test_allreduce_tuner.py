import itertools
import math
import re
import sys

import msgspec
import numpy as np
import pytest

from tests.policies.allreduce_run import MBIT, MODES, NOW_S, UNSHAPED, Law, RoundsRun, Run
from torchloom_core.plugin import Alert, ChangeKnobs, Guard, KnobSpec, ProbeLinks
from torchloom_core.testing import LinkSample, view_of
from torchloom_policies.allreduce.modes import QUALITY
from torchloom_policies.allreduce_tuner import AllreduceTunerPolicy

SCHEDULE = (
    (UNSHAPED, 45),
    (1000 * MBIT, 45),
    (200 * MBIT, 45),
    (50 * MBIT, 60),
    (1000 * MBIT, 45),
)
RING = KnobSpec(name="ring_order", kind="order", fence="run")
PIECES = KnobSpec(name="concurrent_allreduces", kind="int", low=1, high=16, fence="run")
BUCKET = KnobSpec(name="bucket_bytes", kind="int", low=0, fence="run")
EVERY = KnobSpec(name="sync_every", kind="int", low=1, high=256, fence="run")


def quickly(argument, quick, *others):
    """Use these values in every run of the tests, and the others only in slow runs."""
    marked = [pytest.param(value, marks=pytest.mark.slow) for value in others]
    return pytest.mark.parametrize(argument, [*quick, *marked])


def tuner(**options):
    return AllreduceTunerPolicy(AllreduceTunerPolicy.Options(**options))


def progress(law, mode, bandwidth, quality=QUALITY):
    return quality[mode] / law.step_s(mode, bandwidth)


def best(law, bandwidth, quality=QUALITY):
    return max(progress(law, mode, bandwidth, quality) for mode in MODES)


def changes(proposals, knob="compression"):
    return [p for p in proposals if isinstance(p.action, ChangeKnobs) and knob in p.action.values]


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.1])
@quickly("seed", [0], 1, 2, 3)
def test_ten_steps_after_each_change_it_is_within_ten_percent_of_the_best_mode(seed, noise):
    run = Run(tuner(probe_every_s=1.0), seed=seed, noise=noise, lands=1)
    for bandwidth, ticks in SCHEDULE:
        run.bandwidth = bandwidth
        begun = run.step + 1  # the current step has the earlier bandwidth
        run.ticks(ticks)
        modes = [mode for step, _, mode, _ in run.steps if step > begun + 10]
        near = [
            progress(run.law, mode, bandwidth) >= 0.9 * best(run.law, bandwidth) for mode in modes
        ]
        assert np.mean(near) > 0.85, (bandwidth / MBIT, modes)


@pytest.mark.slow
@quickly("noise", [0.15], 0.05)
@quickly("seed", [0], 1, 2)
@pytest.mark.parametrize("mbit", [1000, 50])
def test_at_a_constant_bandwidth_it_switches_at_most_once_after_settling(mbit, seed, noise):
    run = Run(tuner(), seed=seed, noise=noise)
    run.bandwidth = mbit * MBIT
    run.ends_s = run._next()
    run.ticks(60)
    settled = len(run.switches)
    run.ticks(400)
    assert len(run.switches) - settled <= 1, run.switches
    assert progress(run.law, run.mode, run.bandwidth) >= 0.9 * best(run.law, run.bandwidth)


@pytest.mark.slow
@quickly("seed", [0], 1, 2)
def test_equal_modes_cause_no_flapping(seed):
    same = Law(sent=dict.fromkeys(MODES, 0.75), code_s=dict.fromkeys(MODES, 0.02),
               hops=dict.fromkeys(MODES, 6))  # fmt: skip
    run = Run(tuner(quality=dict.fromkeys(MODES, 1.0)), same, seed=seed, noise=0.15)
    run.bandwidth = 200 * MBIT
    run.ticks(300)
    tried = [mode for _, _, mode in run.switches]
    assert len(tried) <= len(MODES)
    late = [step for step, _, _ in run.switches if step > run.step / 2]
    assert not late


@pytest.mark.slow
@quickly("seed", [0], 1, 2)
def test_a_slow_rank_causes_no_switch(seed):
    run = Run(tuner(), seed=seed, mode="powersgd")
    run.bandwidth = 200 * MBIT
    run.ends_s = run._next()
    run.ticks(60)
    assert run.mode == "powersgd"
    run.slow = {1: 2.0}
    run.ticks(120)
    assert run.mode == "powersgd"
    assert run.switches == []


def test_a_drop_of_the_bandwidth_leads_to_a_proposal_at_once():
    run = Run(tuner(), noise=0.02)
    run.ticks(30)
    assert run.switches == []
    run.bandwidth = UNSHAPED / 40
    run.ends_s = run._next()  # the current step uses the slow link
    step = run.step
    while run.step == step:
        proposals = run.tick()
    (change,) = changes(proposals)
    assert change.action.guard == Guard(metric="loss", band=3.0, window_s=30.0)
    assert 0 < change.confidence <= 1
    assert "Mbit/s" in change.reason


@pytest.mark.slow
def test_a_bandwidth_that_recovers_is_detected_without_a_probe():
    run = Run(tuner(probe_every_s=0.0), Law(latency_s=1e-4), noise=0.03)
    run.ticks(10)
    run.bandwidth = 50 * MBIT
    run.ticks(100)
    assert run.mode == "powersgd"
    run.bandwidth = 10_000 * MBIT
    run.ticks(60)
    assert progress(run.law, run.mode, run.bandwidth) >= 0.9 * best(run.law, run.bandwidth)
    assert not [p for p in run.made if isinstance(p.action, ProbeLinks)]


def test_links_are_probed_if_steps_show_little_and_another_mode_may_be_better():
    law = Law(latency_s=2e-3)
    run = Run(tuner(probe_every_s=5.0), law, mode="powersgd", noise=0.02)
    run.bandwidth = 3000 * MBIT
    rounds = []
    for _ in range(40):
        probes = [p for p in run.tick() if isinstance(p.action, ProbeLinks)]
        assert len(probes) <= 1
        rounds += [(run.tick_at, p) for p in probes]
    for _, proposal in rounds:
        named = [worker for pair in proposal.action.pairs for worker in pair]
        assert len(named) == len(set(named))
        assert 640 * 1024 <= proposal.action.probe_bytes <= 1 << 20
        assert proposal.net_gpu_s > 0
    assert rounds[0][1].action.pairs == (("w2", "w1"), ("w0", "w3"))
    assert all(later - tick >= 5 for (tick, _), (later, _) in itertools.pairwise(rounds))
    assert run.mode in ("none", "bf16")


def alerts(run):
    return [proposal.reason for proposal in run.made if isinstance(proposal.action, Alert)]


@pytest.mark.slow
def test_probes_without_results_cause_one_alert():
    run = Run(tuner(probe_every_s=2.0, modes=("powersgd", "bf16"), quality={"bf16": 0.6}),
              Law(latency_s=2e-3), mode="powersgd")  # fmt: skip
    run.bandwidth, run.probe = 100 * MBIT, lambda action: None
    run.ends_s = run._next()
    run.ticks(300)
    assert alerts(run) == [
        "4 rounds of link probes had no result: see torchloom trajectory show --kind outcome"
    ]


@pytest.mark.slow
@quickly("seed", [0, 1], 2, 3)
def test_a_link_that_recovered_is_probed_even_if_it_seemed_busy(seed):
    law = Law(
        gradient_bytes=2.386e6,
        compute_s=0.067,
        overlap_s=0.0,
        latency_s=8e-3,
        sent={"none": 4 / 3, "int8": 0.338, "powersgd": 0.0437},
        code_s={"none": 0.0, "int8": 0.005, "powersgd": 0.009},
        hops=dict.fromkeys(MODES, 4),
    )
    run = Run(tuner(modes=("none", "int8", "powersgd")), law, workers=3, seed=seed, noise=0.02)
    for bandwidth, mode in ((200, "int8"), (20, "powersgd"), (200, "int8")):
        run.bandwidth = bandwidth * MBIT
        run.ticks(45)
        assert run.mode == mode


def test_links_that_the_allreduce_fills_are_not_probed():
    run = Run(tuner(modes=("none",)), knobs=[(RING, "")])
    run.bandwidth = 50 * MBIT
    run.ticks(100)
    assert not run.made


def rolled_back(seconds=8, forgive_s=3600.0, **options):
    """Return a run whose guard rolls topk back each time, and when it was applied."""
    law = Law(code_s={**Law().code_s, "powersgd": 9.0})
    run = Run(tuner(forgive_s=forgive_s, quality={"topk": 1.0}, **options), law)
    run.bandwidth = 50 * MBIT
    run.ends_s = run._next()
    landed, before = [], run.mode
    for _ in range(400):
        before = before if run.mode == "topk" else run.mode
        run.tick()
        if run.mode == "topk" and (not landed or landed[-1][1]):
            landed.append([run.tick_at, 0])
        if landed and not landed[-1][1] and run.tick_at >= landed[-1][0] + seconds:
            landed[-1][1] = run.tick_at
            run.values = {**run.values, "compression": before}
            run.under_way.clear()
            run.switches.append((run.step, "topk", before))
    return run, landed


@pytest.mark.slow
def test_a_mode_that_the_guard_rolled_back_is_not_tried_again():
    run, landed = rolled_back()
    assert len(landed) == 1
    assert run.mode == "int8"


@pytest.mark.slow
def test_a_mode_that_was_rolled_back_is_tried_again_after_forgive_s_at_a_lower_quality():
    run, landed = rolled_back(forgive_s=100.0, penalty=0.5)
    assert 2 <= len(landed) <= 3
    assert run.policy._record.quality("topk") == 0.5 ** len(landed)


@pytest.mark.slow
def test_a_mode_that_measures_slower_is_undone_and_not_tried_again_at_that_bandwidth():
    # The model expects a tenth of the real coding time of int8, so it proposes a trial.
    law = Law(code_s={**Law().code_s, "int8": 1.5})
    run = Run(tuner(modes=("bf16", "int8")), law, mode="bf16")
    run.bandwidth = 1000 * MBIT
    run.ends_s = run._next()
    run.ticks(300)
    assert [(old, new) for _, old, new in run.switches] == [("bf16", "int8"), ("int8", "bf16")]


@pytest.mark.slow
def test_a_denied_change_is_not_proposed_at_every_tick():
    run = Run(tuner(cooldown_s=60.0), lands=10_000)  # no change is ever applied
    run.bandwidth = 200 * MBIT
    run.ticks(181)
    by_value = {}
    for proposal in changes(run.made):
        by_value.setdefault(proposal.action.values["compression"], []).append(proposal)
    assert max(map(len, by_value.values())) <= 4
    assert run.mode == "none"


@pytest.mark.slow
def test_without_a_loss_no_lossy_mode_is_proposed():
    run = Run(tuner())
    run.bandwidth = 50 * MBIT
    run.loss = math.nan
    run.ends_s = run._next()
    run.ticks(120)
    assert run.mode == "int8"
    assert {p.action.guard for p in changes(run.made)} == {None}


@pytest.mark.slow
def test_no_lossy_mode_is_proposed_before_the_loss_can_be_guarded():
    run = Run(tuner(modes=("none", "powersgd")))
    run.bandwidth = 50 * MBIT
    run.ends_s = run._next()  # 12 s a step, of which a window of 30 s has no five
    while not changes(run.made):
        run.tick()
    (change,) = changes(run.made)
    assert len(run.steps) == 6
    assert 110 <= change.action.guard.window_s <= 140
    run.loss = math.nan
    run.bandwidth, run.values = UNSHAPED, {"compression": "none"}
    run.ticks(150)
    run.made.clear()
    run.bandwidth = 50 * MBIT
    run.ticks(150)
    assert not changes(run.made)


@pytest.mark.slow
def test_a_setting_that_the_guard_rolled_back_is_not_proposed_within_forgive_s():
    run = Run(tuner(modes=("none",), forgive_s=150.0), knobs=[(EVERY, 4)], noise=0.02)
    run.bandwidth = 200 * MBIT
    landed = []
    for _ in range(300):
        run.tick()
        if run.values["sync_every"] > 4:
            landed.append((run.tick_at, run.values["sync_every"]))
            run.values = {**run.values, "sync_every": 4}
    assert {value for _, value in landed} == {8}
    assert 2 <= len(landed) <= 3
    assert all(later - tick >= 150 for (tick, _), (later, _) in itertools.pairwise(landed))


def test_a_worker_without_the_knob_causes_one_alert_and_no_change():
    run = Run(tuner())
    run.bandwidth = 50 * MBIT
    run.lacking = {2}
    run.ticks(60)
    (proposal,) = run.made
    assert isinstance(proposal.action, Alert)
    assert "missing on w2" in proposal.reason


def test_a_run_without_compression_causes_one_alert():
    run = Run(tuner())
    run.specs = []
    run.ticks(60)
    (proposal,) = run.made
    assert "CompressedProcessGroup" in proposal.reason
    assert "use_async_quorum=False" in proposal.reason


@pytest.mark.slow
def test_a_run_that_reports_no_bytes_causes_one_alert():
    run = Run(tuner())
    run.silent = {0, 1, 2, 3}
    run.ticks(200)
    (proposal,) = run.made
    assert "sent_bytes" in proposal.reason


@pytest.mark.parametrize(
    "state", ["paused", "standby", ["training", "paused", "training", "training"]]
)
def test_a_paused_run_is_not_tuned(state):
    run = Run(tuner())
    run.bandwidth, run.state = 50 * MBIT, state
    run.ticks(40)
    assert run.made == []


def test_unknown_modes_in_the_options_cause_one_alert():
    run = Run(tuner(modes=("none", "int4", "fp16"), quality={"foo": 0.5}))
    run.specs = [KnobSpec(name="compression", kind="choice", choices=("none", "bf16"), fence="run")]
    run.ticks(30)
    (text,) = alerts(run)
    assert text.endswith("that the knob compression offers, was int4, foo")


@pytest.mark.slow
def test_a_missing_guard_metric_causes_an_alert_after_a_minute():
    run = Run(tuner())
    run.loss = math.nan
    run.ticks(60)
    assert not [p for p in run.made if isinstance(p.action, Alert)]
    run.ticks(60)
    (text,) = alerts(run)
    assert "only lossless modes are proposed" in text
    assert "guard_metric loss" in text
    run = Run(tuner(modes=("none", "bf16")))
    run.loss = math.nan
    run.ticks(120)
    assert not [p for p in run.made if isinstance(p.action, Alert)]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"modes": ["none", "int8", "none"]}, "need each mode once, was none twice"),
        ({"quality": {"bf16": 1e-200}}, "quality"),
        ({"penalty": 1e-200}, "penalty"),
        ({"guard_metric": ""}, "guard_metric"),
    ],
)
def test_invalid_options_are_refused(options, wrong):
    with pytest.raises(msgspec.ValidationError, match=wrong):
        msgspec.convert(options, AllreduceTunerPolicy.Options)


@pytest.mark.slow
def test_tuning_continues_while_ranks_come_and_go():
    run = Run(tuner(), workers=6)
    run.bandwidth = 200 * MBIT
    run.ticks(40)
    for gone in (1, 3, 5):
        run.state = ["gone" if i == gone else "training" for i in range(6)]
        run.ticks(15)
    run.state = "training"
    run.bandwidth = 10_000 * MBIT
    run.ticks(60)
    assert progress(run.law, run.mode, run.bandwidth) >= 0.9 * best(run.law, run.bandwidth)


def linked(n, slow=(), **more):
    speed = np.full((n, n), 1e8)
    for i, j in slow:
        speed[i, j] = speed[j, i] = 5e6
    return {
        (f"w{i}", f"w{j}"): LinkSample(bytes_per_s=float(speed[i, j]), latency_s=1e-4, **more)
        for i in range(n)
        for j in range(n)
        if i != j
    }


def uneven(**options):
    run = Run(tuner(modes=("none",), **options), workers=5, knobs=[(RING, "")])
    run.links = linked(5, slow=[(0, 1), (2, 3)])
    run.bandwidth = 5e6
    run.ends_s = run._next()
    return run


def test_a_ring_over_fast_links_is_proposed_once_all_links_are_known():
    run = uneven()
    missing = run.links.pop(("w3", "w0"))
    run.ticks(40)
    assert not changes(run.made, "ring_order")
    run.links[("w3", "w0")] = missing
    run.ticks(60)
    (proposal,) = changes(run.made, "ring_order")
    order = proposal.action.values["ring_order"].split(",")
    assert sorted(order) == [f"g{i}" for i in range(5)]
    links = list(zip(order, [*order[1:], order[0]], strict=True))
    assert not {frozenset(link) for link in links} & {
        frozenset({"g0", "g1"}),
        frozenset({"g2", "g3"}),
    }
    assert "20 times as fast" in proposal.reason


@pytest.mark.slow
def test_a_ring_order_that_made_steps_slower_is_not_tried_again():
    run = uneven()
    missing = run.links.pop(("w3", "w0"))
    run.ticks(100)
    run.links[("w3", "w0")] = missing
    while not changes(run.made, "ring_order"):
        run.tick()
    (proposed,) = changes(run.made, "ring_order")
    run.law.trial_factor[RING.name, proposed.action.values["ring_order"]] = 1.25
    run.ticks(600)
    assert [p.action.values["ring_order"] for p in changes(run.made, "ring_order")][1:] == [""]


def test_without_ortools_the_ring_is_not_tuned_and_one_alert_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    run = uneven()
    run.ticks(60)
    (text,) = alerts(run)
    assert "pip install 'torchloom[tuner]'" in text
    assert not changes(run.made, "ring_order")


@pytest.mark.slow
def test_more_concurrent_pieces_stay_if_they_measure_better():
    law = Law(trial_factor={(PIECES.name, 2): 0.7, (PIECES.name, 4): 0.6, (PIECES.name, 8): 0.8})
    run = Run(tuner(modes=("none",)), law, knobs=[(PIECES, 1)], noise=0.02)
    run.bandwidth = 1000 * MBIT
    run.ticks(300)
    assert run.values[PIECES.name] == 4
    proposed = [p.action.values[PIECES.name] for p in changes(run.made, PIECES.name)]
    assert proposed == [2, 4, 8, 4]


def test_a_trial_that_measures_no_better_is_undone_with_that_reason():
    run = Run(tuner(modes=("none",)), knobs=[(PIECES, 16)], noise=0.02)
    run.bandwidth = 1000 * MBIT
    run.ticks(60)
    trial, back = changes(run.made, PIECES.name)[:2]
    assert "concurrent_allreduces = 8 is a trial of a setting that has never run" in trial.reason
    assert back.action.values == {PIECES.name: 16}
    assert re.search(
        r"made no significantly higher progress per second than \S+ = 16, ", back.reason
    )


@pytest.mark.slow
def test_trials_end_when_their_budget_is_used_up():
    run = Run(tuner(modes=("none",), explore_gpu_s=0.0), knobs=[(PIECES, 1), (BUCKET, 0)])
    run.bandwidth = 200 * MBIT
    run.ticks(200)
    assert run.made == []


def rounds(mbit, *, law=None, every=8, seed=0, **options):
    run = RoundsRun(tuner(**options), law, every=every, noise=0.05, seed=seed)
    run.bandwidth = mbit * MBIT
    run.ends_s = run._next()
    return run


def progress_in_rounds(run, mode, every, sync_cost):
    """Return the progress per second by the law."""
    law = run.law
    sync_s = law.step_s(mode, run.bandwidth) - law.compute_s
    return QUALITY[mode] * every**-sync_cost / (law.compute_s + sync_s / every)


@pytest.mark.slow
def test_on_a_slow_wire_rounds_become_longer_by_factors_of_two():
    run = rounds(200, every=4, modes=("none",), sync_cost=0.1)
    run.ticks(600)
    proposed = [p.action.values["sync_every"] for p in changes(run.made, "sync_every")]
    assert proposed[:2] == [8, 16]
    # At 3 s of wire and .2 s of computing the optimum of H**-.1 / (.2 + 3 / H) is 9 * 15.
    assert 64 <= run.values["sync_every"] <= 256


@pytest.mark.slow
@quickly("seed", [0], 1, 2, 3)
@quickly("inner_s", [1.1], 0.05, 0.2, 4.0)
def test_in_rounds_every_change_helps_whichever_step_a_tick_samples(inner_s, seed):
    run = rounds(40, law=Law(compute_s=inner_s), seed=seed, sync_cost=0.05)
    first = progress_in_rounds(run, "none", 8, 0.05)
    run.ticks(1200)
    assert progress_in_rounds(run, run.mode, run.values["sync_every"], 0.05) > 1.2 * first
    made = [tuple(p.action.values.items()) for p in run.made if isinstance(p.action, ChangeKnobs)]
    assert len(made) == len(set(made)), made
    before = {"compression": "none", "sync_every": 8}
    for values in made:
        after = {**before, **dict(values)}
        assert progress_in_rounds(run, after["compression"], after["sync_every"], 0.05) > (
            0.95 * progress_in_rounds(run, before["compression"], before["sync_every"], 0.05)
        )
        before = after
    assert not [p for p in run.made if isinstance(p.action, Alert)]


@pytest.mark.slow
@quickly("seed", range(8), *range(8, 20))
def test_arbitrary_telemetry_leads_only_to_finite_proposals(seed):
    random = np.random.default_rng(seed)
    policy = tuner(explore_gpu_s=1e9, probe_wire_share=1.0)
    odd = [0.0, -1.0, 1e-300, 1e-9, 1e300, math.inf, -math.inf, math.nan, 1.0, 1e6]
    values = {"compression": "none", "ring_order": "", "concurrent_allreduces": 1,
              "bucket_bytes": 0, "sync_every": 4}  # fmt: skip
    specs = [KnobSpec(name="compression", kind="choice", choices=(*MODES, "new"), fence="run"),
             RING, PIECES, BUCKET, EVERY]  # fmt: skip
    for tick in range(80):
        n = int(random.integers(2, 6))
        figures = {
            need.metric: np.where(
                random.random(5) < 0.3, random.choice(odd, 5), np.exp(random.normal(0, 5, 5))
            )
            for need in policy.needs
        }
        links = {
            (f"w{i}", f"w{j}"): LinkSample(
                bytes_per_s=float(random.choice(odd)),
                latency_s=float(random.choice(odd)),
                age_s=float(random.choice([0.0, 1.0, 1e6])),
                spread=float(random.choice(odd)),
            )
            for i in range(n)
            for j in range(5)
        }
        view = view_of(
            figures,
            step=random.integers(0, 10, 5) + 3 * tick,
            now_s=NOW_S + tick,
            state=["training" if i < n else "gone" for i in range(5)],
            knob_specs=specs,
            knob_values=[values] * 5,
            links=links,
            can_be_probed=(random.random(5) < 0.7).tolist(),
        )
        for proposal in policy.on_tick(view):
            for number in (proposal.gain_gpu_s, proposal.cost_gpu_s, proposal.confidence):
                assert math.isfinite(number)
                assert number >= 0
            assert proposal.confidence <= 1
            if isinstance(proposal.action, ChangeKnobs):
                values = {**values, **proposal.action.values}
