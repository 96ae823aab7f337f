"""The cost of a step in each mode, by its links and its coding."""

import math

import pytest

from tests.policies.allreduce_run import MBIT, MODES, NOW_S, UNSHAPED, Law, RoundsRun, Run
from torchloom_core.testing import view_of
from torchloom_policies.allreduce.cost import CodingTimes, CostModel
from torchloom_policies.allreduce.link_filter import BaselineTime, LinkFilter
from torchloom_policies.allreduce.modes import prior_of
from torchloom_policies.allreduce.step_samples import NEEDS, StepReader

ALIKE = ("none", "bf16", "int8", "topk", "powersgd")


class Watcher:
    """The part of the policy that reads telemetry, without proposals."""

    def __init__(self):
        self.model, self.reader, self.seen, self.jumps = CostModel(MODES), StepReader(), [], 0
        self.mode = None

    def on_tick(self, view):
        self.model.link.pass_time(view.tick_s)
        mode = view.knob("compression")[0]
        if mode != self.mode:  # the last step may still have the earlier mode
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
def test_it_predicts_steps_of_a_schedule_that_it_was_not_fitted_on(seed):
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
        s_per_byte, _ = model.code.expected(mode, math.log(200 * MBIT))
        assert s_per_byte * law.gradient_bytes == pytest.approx(law.code_s[mode], rel=0.15)


def test_a_drop_of_the_bandwidth_is_detected_at_the_first_step():
    run, model = fitted([(UNSHAPED, "none", 20)])
    before = model.link.bytes_per_s
    run.bandwidth = UNSHAPED / 20
    run._next()
    steps = len(run.policy.seen)
    for _ in range(10):
        if run.policy.jumps == 0:
            run.tick()
    assert run.policy.jumps == 1
    assert len(run.policy.seen) <= steps + 2  # the current step had the old bandwidth
    assert model.link.bytes_per_s == pytest.approx(before / 20, rel=0.3)


def test_a_slow_rank_counts_as_computing_and_not_as_wire_time():
    run, model = fitted([(200 * MBIT, "none", 30)])
    before = model.link.bytes_per_s
    run.slow = {2: 6.0}
    run.ticks(60)
    assert run.policy.jumps == 0
    assert model.link.bytes_per_s == pytest.approx(before, rel=0.15)
    law = Law(compute_s=1.2)
    assert model.cost("none").step_s == pytest.approx(law.step_s("none", 200 * MBIT), rel=0.15)


def test_bytes_and_coding_are_measured_once_a_mode_has_run():
    run, model = fitted([(200 * MBIT, "powersgd", 20)])
    expected = run.law.code_s["powersgd"] / run.law.gradient_bytes
    assert model.code.expected("powersgd", math.log(model.link.bytes_per_s)) == (
        pytest.approx(expected, rel=0.1),
        pytest.approx(0.02, abs=0.02),
    )
    assert model._share["powersgd"] == pytest.approx(0.005 / (1.5 * 0.02))
    assert model.code.tried("powersgd")
    assert not model.code.tried("int8")


def test_it_reports_its_error():
    _, model = fitted([(200 * MBIT, "none", 30)], noise=0.0)
    assert model.error < 0.01
    _, noisy = fitted([(200 * MBIT, "none", 60)], noise=0.2)
    assert 0.03 < noisy.error < 0.5
    assert math.isnan(CostModel(MODES).error)


def test_it_tolerates_a_single_reporter_and_implausible_values():
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


def test_probes_are_weighted_by_their_certainty():
    link = LinkFilter(MODES)
    assert not link.measure_link(1e8, 0.1)
    assert link.bytes_per_s == pytest.approx(1e8)
    assert not link.measure_link(1.1e8, 0.1)
    assert 1e8 < link.bytes_per_s < 1.1e8
    assert link.measure_link(5e6, 0.1)
    assert link.bytes_per_s == pytest.approx(5e6, rel=0.05)


@pytest.mark.parametrize("compute_s", [0.1, 1.1, 3.0])
def test_each_sync_is_read_once_with_its_round_whichever_step_a_tick_samples(compute_s):
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


HERE, ELSEWHERE = math.log(1e8), math.log(1e9)


def test_only_times_measured_at_this_bandwidth_count_if_there_are_any():
    times = CodingTimes()
    for _ in range(8):
        times.take("int8", 4e-9, ELSEWHERE)
    times.take("int8", 2e-9, HERE)
    assert times.expected("int8", HERE) == (pytest.approx(2e-9), pytest.approx(0.05))
    assert times.expected("int8", ELSEWHERE)[0] == pytest.approx(4e-9)


def test_times_measured_at_another_bandwidth_are_less_certain():
    times = CodingTimes()
    times.take("int8", 4e-9, ELSEWHERE)
    assert times.tried("int8")
    assert not times.tried_at("int8", HERE)
    s_per_byte, log_sd = times.expected("int8", HERE)
    assert s_per_byte == pytest.approx(4e-9)
    assert log_sd > 5 * times.expected("int8", ELSEWHERE)[1]


def test_a_mode_that_never_ran_has_its_prior_coding_time():
    times, prior = CodingTimes(), prior_of("int8")
    assert times.expected("int8", HERE) == (1e-9 * prior.code_ns_per_byte, prior.code_log_sd)


def test_a_slow_first_step_is_bounded_by_the_prior():
    times, prior = CodingTimes(), prior_of("int8")
    times.take("int8", 1.0, HERE)
    most = 1e-9 * prior.code_ns_per_byte * math.exp(prior.code_log_sd)
    assert times.expected("int8", HERE)[0] == pytest.approx(most)


def taken(usual, *seconds):
    return [usual.take(each) for each in seconds]


def test_up_to_three_outliers_are_no_change():
    usual = BaselineTime()
    assert all(taken(usual, *[0.1] * 6))
    assert taken(usual, 0.3, 0.3, 0.3, 0.1) == [False, False, False, True]
    assert taken(usual, 0.3) == [False]
    assert usual.shift() is None


def test_four_consecutive_outliers_set_a_new_usual_time():
    usual = BaselineTime()
    taken(usual, *[0.1] * 6, 0.3, 0.3, 0.02, 0.3)
    assert usual.shift() == pytest.approx(math.log(3.0))
    assert usual.shift() is None
    assert taken(usual, 0.3, 0.1) == [True, False]


def test_the_first_steps_are_never_outliers():
    assert all(taken(BaselineTime(), 0.1, 0.5, 0.02, 0.1, 0.1))
