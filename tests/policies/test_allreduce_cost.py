import math
from dataclasses import replace

import pytest

from tests.policies.allreduce_run import MBIT, MODES, NOW_S, UNSHAPED, Law, RoundsRun, Run
from torchloom_core.testing import view_of
from torchloom_policies.allreduce.cost import CostModel
from torchloom_policies.allreduce.link_filter import LinkFilter
from torchloom_policies.allreduce.step_samples import NEEDS, StepReader, StepSample

ALIKE = ("none", "bf16", "int8", "topk", "powersgd")


class Watcher:
    """What the policy does with telemetry, and nothing else."""

    def __init__(self):
        self.model, self.reader, self.seen, self.jumps = CostModel(MODES), StepReader(), [], 0
        self.mode = None

    def on_tick(self, view):
        self.model.pass_time(view.tick_s)
        mode = view.knob("compression")[0]
        if mode != self.mode:  # the last step may still be of the mode before
            self.mode = mode
            self.reader.skip(view)
            return []
        every = view.knob("sync_every")[0] or 1
        sample = self.reader.read(view, list(range(len(view))), mode, every)
        if sample is not None:
            self.seen.append(sample)
            self.jumps += self.model.learn(sample)
        return []


def fitted(schedule, **more):
    run = Run(Watcher(), **more)
    for bandwidth, mode, ticks in schedule:
        run.bandwidth, run.values["compression"] = bandwidth, mode
        run.ticks(ticks)
    return run, run.policy.model


FIT = [
    (bandwidth * MBIT, mode, 12)
    for bandwidth in (1000, 400)
    for mode in ("none", "bf16", "int8", "topk", "powersgd")
]


@pytest.mark.parametrize("seed", range(3))
def test_it_foretells_steps_of_a_schedule_that_it_was_not_fitted_on(seed):
    run, model = fitted(FIT, seed=seed)
    for bandwidth, mode in ((200, "bf16"), (50, "topk"), (700, "none")):
        run.bandwidth, run.values["compression"] = bandwidth * MBIT, mode
        run.ticks(30)
        for other in ALIKE:
            planted = run.law.step_s(other, run.bandwidth)
            assert model.cost(other).step_s == pytest.approx(planted, rel=0.15), (bandwidth, other)


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_planted_bandwidth_latency_and_coding(seed):
    law = Law(latency_s=2e-3)
    _, model = fitted([*FIT, (200 * MBIT, "none", 30), (200 * MBIT, "powersgd", 30)],
                        seed=seed, law=law)  # fmt: skip
    assert model.link.bytes_per_s == pytest.approx(200 * MBIT, rel=0.15)
    assert model.link.latency_s("powersgd") == pytest.approx(2e-3, rel=0.15)
    for mode in ("bf16", "int8", "topk", "powersgd"):
        s_per_byte, _ = model._code.expected(mode, math.log(200 * MBIT))
        assert s_per_byte * law.gradient_bytes == pytest.approx(law.code_s[mode], rel=0.15)


def test_a_bandwidth_that_falls_is_seen_at_the_first_step():
    run, model = fitted([(UNSHAPED, "none", 20)])
    before = model.link.bytes_per_s
    run.bandwidth = UNSHAPED / 20
    run._next()
    steps = len(run.policy.seen)
    for _ in range(10):
        if run.policy.jumps == 0:
            run.tick()
    assert run.policy.jumps == 1
    assert len(run.policy.seen) <= steps + 2  # the step under way was of the old bandwidth
    assert model.link.bytes_per_s == pytest.approx(before / 20, rel=0.3)


def test_one_step_says_little_of_how_long_a_mode_codes_as_it_finds_it_cold():
    run, model = fitted([(1000 * MBIT, "none", 20)])
    told = run.policy.seen[-1]
    sent, code_s = 0.254 / 1.5 * told.sent_bytes, 2.5e-9 * told.gradient_bytes
    wire_s = model.cost("int8").wire_s
    took_s = told.step_s - told.wire_s + wire_s + 15 * code_s
    first = replace(
        told, mode="int8", sent_bytes=sent, wire_s=wire_s, step_s=took_s, compress_s=15 * code_s
    )
    before_s = model.cost("int8").step_s
    model.learn(first)
    assert model.cost("int8").step_s < before_s + 2 * code_s
    for _ in range(4):  # it was not the first step alone
        model.learn(first)
    assert model.cost("int8").step_s > before_s + 10 * code_s


def test_a_slow_rank_is_computing_and_not_the_wire():
    run, model = fitted([(200 * MBIT, "none", 30)])
    before = model.link.bytes_per_s
    run.slow = {2: 6.0}
    run.ticks(60)
    assert run.policy.jumps == 0
    assert model.link.bytes_per_s == pytest.approx(before, rel=0.15)
    law = Law(compute_s=1.2)
    assert model.cost("none").step_s == pytest.approx(law.step_s("none", 200 * MBIT), rel=0.15)


def test_what_is_not_measured_is_uncertain_and_more_so_with_time():
    run, model = fitted([(200 * MBIT, "none", 20)])
    fresh = model.link.log_sd
    assert fresh < 0.3
    _, own = model.faster(model.cost("int8"), model.cost("none"))
    run.law.sent["int8"] = 0.381
    model.pass_time(600.0)
    assert fresh + 0.2 < model.link.log_sd < 2.1
    _, later = model.faster(model.cost("int8"), model.cost("none"))
    assert later > own


def test_a_mode_that_hardly_sends_tells_little_of_the_bandwidth():
    _, much = fitted([(1000 * MBIT, "none", 20)])
    _, little = fitted([(1000 * MBIT, "powersgd", 20)])
    assert little.link.log_sd > 3 * much.link.log_sd


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_are_nearly_all_latency_do_not_carry_the_bandwidth_away(seed):
    law = Law(latency_s=4.4e-3)
    law.sent["powersgd"] = 0.0125
    run, model = fitted([(200 * MBIT, "none", 20), (200 * MBIT, "int8", 20)], law=law, seed=seed)
    run.noise, run.values["compression"] = 0.2, "powersgd"
    run.ticks(200)
    assert model.link.bytes_per_s == pytest.approx(200 * MBIT, rel=0.3)
    run.noise, run.values["compression"] = 0.03, "bf16"
    run.ticks(8)
    assert model.cost("bf16").step_s == pytest.approx(law.step_s("bf16", 200 * MBIT), rel=0.15)


def test_what_was_learned_from_one_step_is_no_surer_than_that_step():
    link = LinkFilter(MODES)
    link.measure_wire("powersgd", 1e6, 18, 18 * link.latency_s("powersgd") + 0.001)
    assert link.log_sd > 0.5
    surer = LinkFilter(MODES)
    surer.measure_wire("none", 1e8, 18, 1.0)
    assert surer.log_sd < 0.2


def test_bytes_and_coding_are_measured_once_a_mode_has_run():
    run, model = fitted([(200 * MBIT, "powersgd", 20)])
    expected = run.law.code_s["powersgd"] / run.law.gradient_bytes
    assert model._code.expected("powersgd", math.log(model.link.bytes_per_s)) == (
        pytest.approx(expected, rel=0.1),
        pytest.approx(0.02, abs=0.02),
    )
    assert model._share["powersgd"] == pytest.approx(0.005 / (1.5 * 0.02))
    assert model.tried("powersgd")
    assert not model.tried("int8")


def test_it_says_how_far_it_was_off():
    _, model = fitted([(200 * MBIT, "none", 30)], noise=0.0)
    assert model.error < 0.01
    _, noisy = fitted([(200 * MBIT, "none", 60)], noise=0.2)
    assert 0.03 < noisy.error < 0.5
    assert math.isnan(CostModel(MODES).error)


def test_it_bears_one_worker_and_senseless_figures():
    run, model = fitted([(200 * MBIT, "none", 10)], workers=2)
    run.silent = {0}
    run.ticks(10)
    assert model.link.bytes_per_s == pytest.approx(200 * MBIT, rel=0.2)
    reader = StepReader()
    names = [need.metric for need in NEEDS]
    for value in (0.0, -1.0, 1e300, math.inf, math.nan, 1e-300):
        view = view_of({name: [[value], [value]] for name in names}, step=7, now_s=NOW_S)
        sample = reader.read(view, [0, 1], "none", 1)
        if sample is not None:
            model.learn(sample)
        assert math.isfinite(model.cost("int8").step_s)


def test_reductions_that_overlap_are_not_counted_twice():
    run, _ = fitted([(200 * MBIT, "none", 5)])
    view = run.view()
    twice = {
        need.metric: view.latest(need.metric) * (2.0 if need.metric == "wire_s" else 1.0)
        for need in NEEDS
    }
    sample = StepReader().read(view_of(twice, step=run.step, now_s=NOW_S), [0, 1, 2, 3], "none", 1)
    assert sample.wire_s == pytest.approx(view.latest("wire_s").min(), rel=0.05)


def test_probed_links_count_as_much_as_they_are_sure():
    link = LinkFilter(MODES)
    assert not link.measure_link(1e8, 0.1)
    assert link.bytes_per_s == pytest.approx(1e8)
    assert not link.measure_link(1.1e8, 0.1)
    assert 1e8 < link.bytes_per_s < 1.1e8
    assert link.measure_link(5e6, 0.1)
    assert link.bytes_per_s == pytest.approx(5e6, rel=0.05)


def test_what_probes_find_beside_what_the_allreduce_gets_is_their_own_matter():
    link = LinkFilter(MODES)
    for _ in range(20):
        link.measure_wire("none", 1e8, 6, 1.0)
        assert not link.measure_link(1.6e8, 0.1)
    assert link.bytes_per_s == pytest.approx(1e8, rel=0.2)


@pytest.mark.parametrize("compute_s", [0.1, 1.1, 3.0])
def test_each_sync_is_seen_once_with_its_round_whichever_step_a_tick_sees(compute_s):
    law = Law(compute_s=compute_s, overlap_s=0.0)
    run = RoundsRun(Watcher(), law, every=6, noise=0.0, mode="int8")
    run.bandwidth = 200 * MBIT
    run.ends_s = run._next()
    run.ticks(120)
    seen = run.policy.seen
    assert len({sample.step for sample in seen}) == len(seen) >= run.step / 2 - 1
    sync_s = law.step_s("int8", run.bandwidth) - compute_s
    for sample in seen[1:]:
        assert sample.every == 6
        assert sample.compute_s == pytest.approx(6 * compute_s)
        assert sample.step_s == pytest.approx(6 * compute_s + sync_s)
    for times in (0.5, 1.0, 2.0):
        expected = compute_s + sync_s / (6 * times)
        assert run.policy.model.cost("int8", times=times).step_s == pytest.approx(expected, rel=0.1)


def test_a_round_that_had_begun_before_its_length_changed_is_not_taken_for_one_of_the_new_length():
    run = RoundsRun(Watcher(), Law(compute_s=1.1), every=4, noise=0.0)
    run.ticks(20)
    step = run.step
    run.under_way.append((run.tick_at, {"sync_every": 8}))
    run.ticks(60)
    seen = {sample.step: sample.every for sample in run.policy.seen}
    assert step + 1 not in seen
    assert seen[step] == 4
    assert seen[step + 2] == 8


def test_a_stall_in_a_modes_first_step_is_not_taken_for_what_the_mode_costs():
    model = CostModel(MODES)
    usual = StepSample(
        now_s=1.0,
        step=1,
        mode="none",
        ranks=4,
        every=1.0,
        step_s=1.3,
        compute_s=0.2,
        compress_s=0.0,
        wire_s=1.0,
        overlap_s=0.0,
        sent_bytes=5e6,
        gradient_bytes=5e6 / 1.5,
        reductions=1.0,
    )
    for _ in range(5):
        model.learn(usual)
    model.learn(replace(usual, mode="bf16", step_s=30.0, wire_s=0.5, sent_bytes=2.5e6))
    assert model.cost("bf16").step_s < 1.3


def test_links_that_flicker_while_little_is_sent_are_never_known_less_than_not_at_all():
    link = LinkFilter(("none", "powersgd"))
    link.measure_wire("none", 5e6, 6, 1.0)
    for step in range(2000):
        link.measure_wire("powersgd", 1e5, 18, 0.01 if step // 6 % 2 else 0.005, fills=False)
    assert link.log_sd <= 2.1


def test_however_often_the_ring_is_another_its_links_are_not_known_less_than_not_at_all():
    link = LinkFilter(("none",))
    link.measure_wire("none", 5e6, 6, 1.0)
    for _ in range(100):
        link.doubt()
    assert link.log_sd <= 2.1


def test_steps_that_late_ranks_made_longer_say_little_of_a_fast_link():
    link, sent_bytes, own_s = LinkFilter(MODES), 1.3e6, 0.38
    for _ in range(30):
        link.measure_wire("topk", sent_bytes, 9, 0.21, own_s=own_s)
        link.pass_time(1.0)
    link.measure_wire("topk", sent_bytes, 9, 0.055, own_s=own_s)
    for _ in range(3):
        link.measure_link(1000 * MBIT, 0.1)
    probed = link.bytes_per_s
    for wire_s in 3 * (0.04, 0.038, 0.032, 0.05, 0.03):
        link.measure_wire("topk", sent_bytes, 9, wire_s, own_s=own_s)
    assert link.bytes_per_s > 0.85 * probed > 0.7 * 1000 * MBIT
    for _ in range(6):
        link.measure_wire("topk", sent_bytes, 9, 0.21, own_s=own_s)
    assert link.bytes_per_s < 100 * MBIT
