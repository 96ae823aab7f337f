"""Costs of a backtest that are read from the record of a run."""

import pytest

from tests.evaluate.episodes import (
    CONFIG,
    DAY_NS,
    NODES,
    START_NS,
    event,
    scene_of,
    some_events,
    write,
)
from tests.evaluate.traces import writing
from tests.recorded_epoch import Recorder
from torchloom_core.config.evaluation import Evaluate
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.interface.checkpointing import daly_s
from torchloom_core.lab.evaluate.evaluation import evaluate
from torchloom_core.lab.evaluate.goodput.arms import tier_arms
from torchloom_core.lab.evaluate.goodput.candidates import Selection
from torchloom_core.lab.evaluate.goodput.job import job_spec
from torchloom_core.lab.evaluate.measured_costs import MeasuredCosts, SaveCost, measured_costs
from torchloom_core.lab.evaluate.request import EvaluationRequest, TraceRequest
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.wire.messages import Exit, Hello, Note, Telemetry
from torchloom_core.wire.start_phases import START_PHASES, Start

MEASURED = MeasuredCosts(
    source="run-7",
    tiers={
        "memory": SaveCost(0.5, 9),
        "path": SaveCost(5.0, 4),
        "remote": SaveCost(50.0, 2),
    },
    detect_s=3.0,
    restart_s=40.0,
    restore_s=4.0,
    recoveries=2,
)


class Run(Recorder):
    """The record of a run with one worker; each input is recorded a second after the last."""

    def __init__(self, folder):
        super().__init__(folder, 1)
        self._number = 0

    def note(self, kind, **fields):
        self.step(Note(**self._process, kind=kind, fields=fields))

    def saved(self, **fields):
        self.note("checkpoint_saved", **{"tier": "path", "felt_s": 2.0, "blocked_s": 0.1, **fields})

    def start(self, **seconds):
        self._number += 1
        self._process = {"run": "run", "worker": "g0-0", "incarnation": self._number}
        began_ns = self._now_ns
        self.step(Hello(**self._process, group="g0", rank=0, node="n", ts_ns=began_ns + SECOND_NS))
        phases = Start(began_ns=began_ns, phase="", joined=False, seconds=seconds)
        self.note(START_PHASES, **phases.fields())
        self.step(Telemetry(**self._process, seq=1, state="training", step=3, progress_age_s=0.0))

    def kill(self):
        ts_ns = self._now_ns  # a second before it is received
        self.step(Exit(**self._process, status=-9, expected=False, step=4, ts_ns=ts_ns))


def test_costs_are_medians_of_what_the_run_felt_and_of_its_recoveries(tmp_path):
    run = Run(tmp_path)
    run.start(build=1.0)
    for felt_s in (2.0, 9.0, 3.0):
        run.saved(felt_s=felt_s)
        run.saved(tier="memory", felt_s=0.0, blocked_s=0.25)
    run.saved(felt_s=float("nan"))
    run.saved(tier="attic")
    run.saved(blocked_s="long")
    run.note("saved", tier="remote", felt_s=1.0, blocked_s=1.0)
    run.kill()
    run.start(restore=2.0, first_step=1.0)
    run.kill()
    run.writer.close()
    found = measured_costs(tmp_path)
    assert found.tiers == {"memory": SaveCost(0.25, 3), "path": SaveCost(3.0, 3)}
    assert found.recoveries == 1
    assert (found.restore_s, found.detect_s) == (2.0, pytest.approx(1.0, abs=0.01))
    assert found.restart_s == pytest.approx(3.0, abs=0.01)
    applied = found.applied_to(CONFIG)
    assert (applied.costs.checkpoint_s, applied.evaluate.proactive_checkpoint_s) == (3.0, 3.0)
    assert applied.costs.restart_s == found.restart_s
    assert "3 s in the tier path (saves: 3)" in found.in_words
    assert "(recoveries: 1)" in found.in_words


def test_what_was_not_recorded_stays_as_configured_and_is_named(tmp_path):
    run = Run(tmp_path)
    run.start(build=1.0)
    run.saved()
    run.writer.close()
    found = measured_costs(tmp_path)
    assert found.applied_to(CONFIG).costs.restart_s == CONFIG.costs.restart_s
    assert "restart are the config's, as no recovery is recorded" in found.in_words


def test_a_record_without_any_cost_is_one_line(tmp_path):
    run = Run(tmp_path)
    run.start(build=1.0)
    run.writer.close()
    with pytest.raises(StateError, match=r"--costs-from .*: need a run that saved with loom.che"):
        measured_costs(tmp_path)


def test_each_tier_is_an_arm_and_memory_with_a_durable_one_by_the_two_level_optimum():
    arms = {arm.name: job_spec(arm, CONFIG, 1e4, 1e5) for arm in tier_arms(MEASURED)}
    assert [*arms] == ["memory", "path", "remote", "all_tiers"]
    assert arms["remote"].local is None
    assert arms["remote"].durable.interval_s == daly_s(save_s=50.0, mtbf_s=1e4)
    assert arms["memory"].durable.interval_s == float("inf")
    both = arms["all_tiers"]
    assert both.local_has_copies
    assert both.local.interval_s == pytest.approx(daly_s(save_s=0.5, mtbf_s=1e5 / 9))
    assert both.durable.interval_s == daly_s(save_s=5.0, mtbf_s=1e5)
    assert not {arm.name for arm in tier_arms(MeasuredCosts(source="", tiers={}))}


def test_failures_of_several_nodes_of_the_job_are_counted_apart(tmp_path):
    with writing(tmp_path / "racks.tltrace", START_NS, START_NS + 6 * DAY_NS) as writer:
        writer.add(Component(id="r0", kind="rack"))
        for node in NODES:
            writer.add(Component(id=node, kind="node", parents=("r0",), gpus=8))
        for number, place in enumerate(("n0", "n1", "r0")):
            writer.add(event(number, 10.0 * (number + 1), place))
    whole = Evaluate(groups=len(NODES), standbys=0, spares=0, days=6.0)
    scene = scene_of(Bundle.open(tmp_path / "racks.tltrace"), evaluate=whole)
    assert (scene.failures, scene.of_several) == (3, 1)
    assert scene.several_nodes_mtbf_s == scene.wall_s


@pytest.mark.long
def test_an_evaluation_with_measured_costs_says_so_and_plays_the_tiers(tmp_path):
    trace = TraceRequest(path=write(tmp_path / "small.tltrace", some_events()).path)
    fields = {"traces": (trace,), "config": CONFIG, "selection": Selection(), "seeds": 1}
    request = EvaluationRequest(**fields, vary_costs=False, measured=MEASURED)
    (found,) = evaluate(request, tmp_path / "runs", lambda *_: None).traces
    assert MEASURED.in_words in found.assumptions
    goodput = {arm.name: arm.goodput.value for arm in found.simulation.arms}
    assert goodput["all_tiers"] > goodput["path"] > goodput["remote"]
    assert goodput["path"] == goodput["daly"]
    assert found.simulation.job["costs"]["restart_s"] == 40.0
    replayed = EvaluationRequest(**fields, mode="replay", measured=MEASURED)
    with pytest.raises(ConfigError, match="--costs-from: need --mode simulate, was replay"):
        evaluate(replayed, tmp_path / "runs", lambda *_: None)
