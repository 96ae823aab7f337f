"""The step time of a run that waits for the network matches its closed form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.lab.simulate.allreduce_run import AllreduceRun, Mode, Workload
from torchloom_core.lab.simulate.links import Bottleneck

MODES = {
    "none": Mode(sent_bytes=18e6, compress_s=0.0, quality=1.0),
    "int8": Mode(sent_bytes=18e6 * 0.254, compress_s=0.03, quality=1.0),
    "topk": Mode(sent_bytes=18e6 * 0.03, compress_s=0.05, quality=0.5),
}


def load(**fields):
    given = {
        "ranks": 4,
        "gradient_bytes": 12_000_000,
        "compute_s": 0.15,
        "overlap": 0.0,
        "latency_s": 0.002,
        "noise": 0.0,
        "modes": MODES,
    }
    return Workload(**{**given, **fields})


def run_of(wire, seed=0, **fields):
    return AllreduceRun(load(**fields), wire, np.random.default_rng(seed))


def played(run, mode, steps):
    for _ in range(steps):
        run.finish(run.step(mode))
    return run


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mbit_per_s", [1000.0, 200.0, 50.0])
def test_a_step_over_a_steady_link_is_compute_compression_wire_and_hops(mode, mbit_per_s):
    rate = mbit_per_s * 125_000
    run = played(run_of(Bottleneck([0.0], [rate], 60.0)), mode, 20)
    step_s = 0.15 + MODES[mode].compress_s + MODES[mode].sent_bytes / rate + 0.002
    assert run.now_s == pytest.approx(20 * step_s, rel=1e-12)
    assert run.progress == pytest.approx(20 * MODES[mode].quality)


def test_a_mode_that_makes_use_of_half_a_link_is_twice_as_long_on_the_wire():
    half = Mode(sent_bytes=18e6, compress_s=0.0, quality=1.0, link_use=0.5)
    step = run_of(Bottleneck([0.0], [6e6], 60.0), modes={"none": half}).step("none")
    assert step.exposed_s == pytest.approx(2 * 18e6 / 6e6 + 0.002)


def test_a_step_that_meets_a_slower_link_takes_as_long_as_the_rest_takes_over_that():
    # 0.1 s of it at 125 MB/s, before the link slows down.
    run = run_of(Bottleneck([0.0, 1.0], [125e6, 6.25e6], 100.0), compute_s=0.9)
    step = run.step("none")
    left = 18e6 - 0.1 * 125e6
    assert step.end_s == pytest.approx(1.0 + left / 6.25e6 + 0.002, rel=1e-12)


def test_what_overlaps_is_hidden_and_the_rest_waited_for():
    rate = 120e6
    step = run_of(Bottleneck([0.0], [rate], 60.0), overlap=0.4).step("none")
    wire_s = 18e6 / rate
    assert step.hidden_s == pytest.approx(0.4 * wire_s)
    assert step.end_s == pytest.approx(0.15 + 0.6 * wire_s + 0.6 * 0.002)


def test_no_more_is_hidden_than_compute_has_time_for():
    rate = 6e6
    step = run_of(Bottleneck([0.0], [rate], 60.0), overlap=0.5, latency_s=0.0).step("none")
    assert step.hidden_s == pytest.approx(0.15)
    assert step.end_s == pytest.approx(18e6 / rate)


@given(st.integers(0, 100), st.sampled_from(list(MODES)), st.sampled_from(list(MODES)))
def test_a_step_draws_the_same_in_whatever_mode_and_the_one_before_it(seed, one, other):
    wire = Bottleneck([0.0], [25e6], 60.0)
    first = played(run_of(wire, seed, noise=0.1), one, 3).step("none")
    second = played(run_of(wire, seed, noise=0.1), other, 3).step("none")
    assert first.own_s.tolist() == second.own_s.tolist()
    assert first.end_s - first.begin_s == pytest.approx(second.end_s - second.begin_s)


def test_the_slowest_rank_is_waited_for_and_times_are_right_on_the_mean():
    run = run_of(Bottleneck([0.0], [1e12], 60.0), noise=0.1, latency_s=0.0)
    steps = []
    for _ in range(4000):
        steps.append(run.step("none"))
        run.finish(steps[-1])
    own = np.array([step.own_s for step in steps])
    took = np.array([step.end_s - step.begin_s for step in steps])
    assert own.mean() == pytest.approx(0.15, rel=0.01)
    assert took == pytest.approx(own.max(axis=1), rel=1e-3)


def test_the_best_mode_is_the_one_with_most_progress_a_second():
    wire = Bottleneck([0.0, 10.0, 20.0], [1e9, 30e6, 0.5e6], 100.0)
    run = run_of(wire)
    chosen = {}
    while run.now_s < 40.0:
        step = run.best()
        chosen.setdefault(step.mode, run.now_s)
        run.finish(step)
    # At 30 MB/s: none .15 + 18/30, int8 .18 + 4.6/30, topk .2 + .54/30, of which half counts.
    assert list(chosen) == ["none", "int8", "topk"]
    assert chosen["int8"] == pytest.approx(10.0, abs=0.4)
    assert chosen["topk"] == pytest.approx(20.0, abs=4.0)
    assert [stretch.mode for stretch in run.stretches] == list(chosen)
    assert sum(run.in_mode_s.values()) == pytest.approx(run.now_s)
