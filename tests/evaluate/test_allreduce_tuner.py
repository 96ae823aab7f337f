"""The allreduce tuner on planted links: it beats every static mode, without future data."""

import math

import msgspec
import numpy as np
import pytest

from tests.evaluate.test_allreduce_study import quiet_runner
from torchloom_core.config.evaluation import Allreduce, AllreduceMode
from torchloom_core.config.schema import ActionRule, Arbiter, Config
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import installed
from torchloom_core.lab.evaluate.allreduce.run import Setting, kernel_config, workload_of
from torchloom_core.lab.evaluate.allreduce.simulated_trainers import SimulatedTrainers
from torchloom_core.lab.evaluate.allreduce.study import run_study
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.closed_loop import ClosedLoop
from torchloom_core.lab.evaluate.goodput.episode import rng
from torchloom_core.lab.simulate.allreduce_run import AllreduceRun
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.synthetic.trace import BandwidthParameters, synthesize_bandwidth

RANKS = 4
LEVELS = (10_000.0, 1000.0, 200.0, 50.0, 1000.0)
HOLD_S = 60.0
MBIT = 125_000.0
JOB = Allreduce(
    gradient_bytes=28_900_000,
    compute_s=0.2,
    latency_s=0.0003,
    modes={
        "none": AllreduceMode(),
        "bf16": AllreduceMode(compress_s=0.02),
        "int8": AllreduceMode(compress_s=0.09),
        "topk": AllreduceMode(compress_s=0.06, quality=0.4),
        "powersgd": AllreduceMode(sent=0.005, compress_s=0.08, quality=0.56),
    },
)
SENT = {"none": 1.0, "bf16": 0.5, "int8": 0.254, "topk": 0.03, "powersgd": 0.005}
CONFIG = Config(arbiter=Arbiter(actions={"knobs": ActionRule(cooldown_s=5.0)}))
TUNER = Arm(name="tuner", kind="candidate", what="tuned", policies={"allreduce_tuner": {}})


def planted(folder, *, jitter=0.0, levels=LEVELS):
    parameters = BandwidthParameters(
        mbit_per_s=levels,
        hold_s=HOLD_S,
        duration_s=HOLD_S * len(levels),
        workers=RANKS,
        jitter=jitter,
    )
    synthesize_bandwidth(folder / "planted.tltrace", parameters)
    return Bundle.open(folder / "planted.tltrace")


def play(bundle, job=JOB, seeds=2):
    setting = Setting(trace=str(bundle.path), config=CONFIG, job=job)
    return run_study(
        setting,
        [TUNER],
        quiet_runner(bundle.path.parent / "runs"),
        seeds=seeds,
    )


def closed_form(mode, levels=LEVELS):
    """Return the progress in the time of the trace: each level's time over its step."""
    cost = JOB.modes[mode]
    sent = SENT[mode] * 2 * (RANKS - 1) / RANKS * JOB.gradient_bytes
    own_s = JOB.compute_s + cost.compress_s + 2 * (RANKS - 1) * JOB.latency_s
    return sum(HOLD_S * cost.quality / (own_s + sent / (rate * MBIT)) for rate in levels)


def ranked(simulation):
    static = [arm for arm in simulation.arms if arm.kind == "baseline"]
    best_first = sorted(static, key=lambda arm: -arm.progress_per_h.value)
    return [arm.name.removeprefix("static ") for arm in best_first]


@pytest.mark.slow
def test_on_levels_that_differ_the_tuner_makes_more_progress_than_any_mode_alone(tmp_path):
    simulation = play(planted(tmp_path, jitter=0.03))
    arms = {arm.name: arm for arm in simulation.arms}
    tuner = arms["tuner"]
    for mode in JOB.modes:
        assert tuner.progress_per_h.value > 1.1 * arms[f"static {mode}"].progress_per_h.value, mode
    assert tuner.progress_per_h.value <= arms["oracle"].progress_per_h.value
    assert not tuner.quarantined


@pytest.mark.slow
def test_the_report_ranks_the_modes_as_the_closed_form_does(tmp_path):
    for levels in (LEVELS, (10_000.0, 5000.0), (1000.0, 200.0), (200.0, 50.0)):
        folder = tmp_path / f"{levels[-1]:g}-{len(levels)}"
        folder.mkdir()
        bundle = planted(folder, levels=levels)
        by_hand = sorted(JOB.modes, key=lambda mode: -closed_form(mode, levels))
        quiet = msgspec.structs.replace(JOB, noise=0.0)
        simulation = play(bundle, quiet, seeds=1)
        assert ranked(simulation) == by_hand, levels
        assert simulation.reference == f"static {by_hand[0]}"
        # The step at the end of a level is of both.
        best = closed_form(by_hand[0], levels)
        assert simulation.progress == pytest.approx(best, rel=0.02)


def decisions(links):
    config = kernel_config(CONFIG, TUNER)
    run = AllreduceRun(workload_of(JOB, RANKS), links.bottleneck, rng(0, "steps"))
    trainers = SimulatedTrainers(
        run,
        JOB,
        links,
        name="run",
        goal=math.inf,
        limit_s=HOLD_S * len(LEVELS),
        heartbeats=np.linspace(0.0, 0.9, RANKS),
        probing=rng(0, "probes"),
    )
    loop = ClosedLoop(trainers, config, activate(config, installed(), "x"), start_ns=links.start_ns)
    loop.run()
    return loop.verdicts
