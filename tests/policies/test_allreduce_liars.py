"""Wrong reports by one worker of several, and ambiguous telemetry."""

import math

import numpy as np
import pytest

from tests.policies.allreduce_run import (
    CODE,
    COMPUTE,
    MBIT,
    OVERLAP,
    ROUND,
    ROUND_STEPS,
    ROUND_WAIT,
    SENT,
    STEP,
    WAIT,
    WIRE,
    Law,
    Run,
)
from torchloom_core.plugin import ChangeKnobs
from torchloom_policies.allreduce.step_samples import StepReader
from torchloom_policies.allreduce_tuner import AllreduceTunerPolicy


class Liar(Run):
    """The last worker reports the values of ``lie(run)``, by metric, and ``ahead`` more steps."""

    def __init__(self, *args, lie=lambda run: {}, ahead=lambda run: 0, **kwargs):
        self.lie, self.ahead = lie, ahead
        super().__init__(*args, **kwargs)

    def view(self):
        honest, self.newest = self.newest, dict(self.newest)
        for metric, value in self.lie(self).items() if self.step else ():
            self.newest[metric] = np.append(self.newest[metric][:-1], value)
        view = super().view()
        self.newest = honest
        steps = np.array(view.step)
        steps[-1] += self.ahead(self)
        view.step = steps
        return view


def tuner(**options):
    return AllreduceTunerPolicy(AllreduceTunerPolicy.Options(**options))


def changes(run):
    return [proposal.action for proposal in run.made if isinstance(proposal.action, ChangeKnobs)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        lambda run: {STEP: 1e6},
        lambda run: {ROUND_STEPS: 1.0},
        lambda run: {ROUND_STEPS: 1e9, ROUND: 10.0, ROUND_WAIT: 0.0},
        lambda run: {STEP: math.nan},
    ],
)
@pytest.mark.parametrize("workers", [4, 100])
def test_a_wrong_step_time_of_one_worker_has_no_effect(lie, workers):
    run = Liar(tuner(), workers=workers, noise=0.02, lie=lie)
    run.bandwidth = 50 * MBIT
    run.ticks(90)
    assert run.mode in ("topk", "powersgd")
    assert all(change.guard.window_s < 600.0 for change in changes(run) if change.guard)


@pytest.mark.slow
def test_a_wrong_step_number_of_one_worker_has_no_effect():
    wrong = {STEP: 1.0, COMPUTE: 0.2, WAIT: 0.05, WIRE: 1e-3, CODE: 0.0, OVERLAP: 0.0, SENT: 75.6e6}

    def lies(run):
        return run.tick_at >= 100

    run = Liar(
        tuner(),
        Law(compute_s=6.0, overlap_s=0.0),
        noise=0.02,
        lie=lambda run: wrong if lies(run) else {},
        ahead=lambda run: run.tick_at * lies(run),
    )
    run.bandwidth = 20 * MBIT
    run.ticks(100)
    before = run.mode
    run.ticks(300)
    assert before == run.mode != "none"


def congested(run):
    """Lower the bandwidth to a quarter for five of each twelve ticks."""
    run.bandwidth = (5 if run.tick_at > 20 and run.tick_at % 12 < 5 else 20) * MBIT
    run.tick()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "low", "high"),
    [
        (lambda run: {}, 4, 25),
        (lambda run: {WIRE: 2.1e-4} if flickers(run) else {}, 4, 1e6),
    ],
)
def test_intermittent_changes_leave_the_bandwidth_estimate_bounded(lie, low, high):
    run = Liar(tuner(modes=("powersgd",)), noise=0.02, mode="powersgd", lie=lie)
    for _ in range(1500):
        congested(run)
    assert low * MBIT < run.policy._model.link.bytes_per_s < high * MBIT


def flickers(run):
    return run.tick_at > 20 and run.tick_at % 11 < 5


def test_a_mode_that_sends_as_many_bytes_as_the_last_one_is_measured_too():
    law = Law()
    law.sent["bf16"] = law.sent["none"]  # of gradients that are bfloat16
    run, reader = Run(tuner(), law, noise=0.02), StepReader()

    def read(mode):
        run.values = {**run.values, "compression": mode}
        run.tick()
        return reader.read(run.view(), list(range(run.n)), mode, 1)

    assert any(read("none") for _ in range(10))
    assert [read("bf16") is not None for _ in range(10)].count(True) > 5
