import dataclasses
import re

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.evaluate.episodes import (
    CONFIG,
    COSTS,
    DAY_NS,
    HOUR_NS,
    JOB,
    START_NS,
    candidate,
    event,
    policies,
    scene_of,
    setting_of,
    some_events,
    write,
)
from torchloom_core.capabilities.admit import AdmitGroup
from torchloom_core.capabilities.alert import Alert
from torchloom_core.capabilities.checkpoint import SaveCheckpoint
from torchloom_core.capabilities.cordon import CordonNode
from torchloom_core.capabilities.migrate import Migrate
from torchloom_core.capabilities.uncordon import UncordonNode
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.needs import windows_s
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.closed_loop import ClosedLoop
from torchloom_core.lab.evaluate.forecasts.altered_future import OtherFuture
from torchloom_core.lab.evaluate.goodput.arms import baselines, random_alarms
from torchloom_core.lab.evaluate.goodput.job import job_spec, kernel_config
from torchloom_core.lab.evaluate.goodput.run import play, plugins_of, simulate
from torchloom_core.lab.evaluate.goodput.simulated_fleet import SimulatedFleet
from torchloom_core.lab.simulate.model import FleetModel
from torchloom_core.lab.simulate.scenario import Hit
from torchloom_core.live.kernel.plugins.host import ActivePlugins, ActivePolicy
from torchloom_core.plugin import Hazard, Need, NeedForecast
from torchloom_core.wire.decisions import Proposal

pytestmark = pytest.mark.slow

METRICS = ("ecc_total", "gpu_temp_celsius")
TREND = {
    "metric": "gpu_temp_celsius",
    "level": 60.0,
    "window_s": 7200.0,
    "horizon_s": 21_600.0,
    "every_s": 600.0,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "small.tltrace"
    return write(path, some_events(), metrics=METRICS, load_dependent=("gpu_temp_celsius",))


class Scripted:
    """A policy whose proposals come from a function of the view."""

    name = "scripted"

    def __init__(self, wanted, needs=()):
        self._wanted = wanted
        self.needs = tuple(Need(metric) for metric in needs)

    def on_tick(self, view):
        return self._wanted(view)


def drive(stage, plugins_or_policy, arm=None, config=CONFIG):
    """Play a closed loop; return it, its fleet and the model's result."""
    arm = arm or candidate()
    job = job_spec(arm, config, stage.mtbf_s)
    model = FleetModel(job, stage.nodes, stage.hits, start_ns=stage.start_ns, end_ns=stage.end_ns)
    plugins = plugins_or_policy
    if isinstance(plugins, Scripted):
        plugins = ActivePlugins((ActivePolicy("scripted", plugins),))
    metrics = windows_s(plugins.needs)
    fleet = SimulatedFleet(stage, job, model, config.run.name, metrics, 3600.0)
    kernel = kernel_config(arm, config, job)
    loop = ClosedLoop(
        fleet, kernel, plugins, start_ns=stage.start_ns, observable_faults=stage.observable_faults
    )
    loop.run()
    return loop, fleet, model.finish()


def real(arm, stage, bundle, config=CONFIG):
    """Build the plugins of an arm as a run does."""
    job = job_spec(arm, config, stage.mtbf_s)
    return plugins_of(arm, kernel_config(arm, config, job), setting_of(bundle), stage)


def quiet(folder, evaluate=JOB):
    """Return an episode without a failure."""
    trace = write(folder / "quiet.tltrace", [event(0, 1.0, "n0", fatal=False)])
    return scene_of(trace, evaluate=evaluate)


def at_ticks(stage, actions):
    """Propose actions at their ticks."""

    def wanted(view):
        action = actions.get(round((view.now_ns - stage.start_ns) / (600 * SECOND_NS)))
        return [Proposal(action=action, reason="test", gain_gpu_s=1e9)] if action else []

    return wanted


# --- nothing of the future reaches a decision ---


@pytest.mark.slow
@settings(
    max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    seed=st.integers(0, 50),
    hours=st.floats(1, 24 * JOB.days - 1),
    arm=st.sampled_from(
        [
            candidate(),
            random_alarms(2.0),
            *(a for a in baselines(policies(), JOB) if a.name == "daly_online"),
            candidate(
                policies={"failure_forecast": {"predictor": "trend", "min_probability": 0.0}},
                predictors={"trend": TREND},
            ),
        ]
    ),
)
def test_another_future_leaves_every_decision_before_it_the_same(bundle, seed, hours, arm):
    stage = scene_of(bundle, seed=seed)
    after_ns = stage.start_ns + round(hours * HOUR_NS)
    other = scene_of(OtherFuture(bundle, after_ns), seed=seed)
    assert other.nodes == stage.nodes
    # Daly's interval depends on the failures of the episode, so it is fixed here.
    other = dataclasses.replace(other, failures=stage.failures)
    was, _, _ = drive(stage, real(arm, stage, bundle), arm)
    now, _, _ = drive(other, real(arm, other, bundle), arm)
    assert _until(was.verdicts, after_ns) == _until(now.verdicts, after_ns)


@pytest.mark.slow
def test_an_oracle_decides_differently_in_another_future(bundle):
    oracle = next(arm for arm in baselines(policies(), JOB) if arm.name == "oracle")
    stage = scene_of(bundle)
    after_ns = stage.hits[1].ts_ns - HOUR_NS
    other = scene_of(OtherFuture(bundle, after_ns))
    was, _, _ = drive(stage, real(oracle, stage, bundle), oracle)
    now, _, _ = drive(other, real(oracle, other, bundle), oracle)
    assert _until(was.verdicts, after_ns) != _until(now.verdicts, after_ns)


def _until(verdicts, ns):
    return [msgspec.json.encode(verdict) for ts_ns, verdict in verdicts if ts_ns <= ns]


# --- books and repeatability ---


@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1000),
    arm=st.sampled_from([*baselines(policies(), JOB), random_alarms(1.0), candidate()]),
    recovery=st.sampled_from(["restart", "per_step"]),
)
def test_the_buckets_add_up_and_the_same_seed_gives_the_same_bytes(bundle, seed, arm, recovery):
    config = replace(CONFIG, evaluate=replace(JOB, recovery=recovery))
    setting = setting_of(bundle, config)
    run = simulate(setting, arm, seed)
    assert sum(run.buckets.values()) == pytest.approx(run.wall_s * run.gpus, rel=1e-9)
    assert not run.quarantined
    again = play(setting, arm, scene_of(bundle, evaluate=config.evaluate, seed=seed))
    assert msgspec.json.encode(again) == msgspec.json.encode(run)


# --- commands ---


def test_a_migration_takes_as_long_as_its_commands_not_a_tick(tmp_path):
    stage = quiet(tmp_path)
    wanted = at_ticks(stage, {3: Migrate(group="g0")})
    _, fleet, result = drive(stage, Scripted(wanted))
    assert result.migrations == 1
    decided, migrated = (
        next(entry.ts_ns for entry in fleet.timeline if entry.kind == kind)
        for kind in ("decided migrate", "migrated")
    )
    # One command for the standby to join, one for the group to leave, one second each.
    assert migrated - decided == 2 * SECOND_NS
    assert result.buckets["migrate"] == JOB.groups * 8 * COSTS.migrate_s * SECOND_NS


class Sure:
    """Forecasts every hour that all will fail."""

    name = "sure"
    needs = ()
    horizon_s = 21_600.0
    every_s = 3600.0

    def forecast(self, view):
        return Hazard(probability=np.ones(len(view)))


@pytest.mark.parametrize(("takes_s", "ticks"), [(0.0, 1), (600.0, 1), (601.0, 2), (1800.0, 3)])
def test_a_forecast_is_there_once_the_time_that_it_takes_has_passed(tmp_path, takes_s, ticks):
    config = replace(CONFIG, evaluate=replace(JOB, forecast_s=takes_s, days=0.2))
    stage = quiet(tmp_path, config.evaluate)
    answers = []

    def look(view):
        answers.append(view.forecast("sure"))
        return []

    policy = Scripted(look)
    policy.needs = (NeedForecast("sure"),)
    plugins = ActivePlugins((ActivePolicy("scripted", policy),), {"sure": Sure()})
    loop, _, _ = drive(stage, plugins, config=config)
    assert not loop.quarantined
    # It is requested at the first tick, after the policies have run.
    assert [one is not None for one in answers[: ticks + 1]] == [False] * ticks + [True]
    assert answers[ticks].latency_s == takes_s


@pytest.mark.parametrize(("after_s", "right"), [(60.0, 1), (3600.0, 1), (3601.0, 0)])
def test_a_move_is_right_if_a_node_it_left_is_hit_within_the_horizon(tmp_path, after_s, right):
    stage = quiet(tmp_path)
    struck_ns = stage.start_ns + round((3 * 600 + after_s) * SECOND_NS)
    hit = Hit(id="h", ts_ns=struck_ns, nodes=stage.nodes[:1], follows="component", repair_ns=1)
    wanted = at_ticks(stage, {3: Migrate(group="g0")})
    _, fleet, _ = drive(dataclasses.replace(stage, hits=(hit,)), Scripted(wanted))
    assert (fleet.moves, fleet.right_moves) == (1, right)


def test_a_checkpoint_command_to_all_workers_saves_once(tmp_path):
    stage = quiet(tmp_path)
    wanted = at_ticks(stage, {3: SaveCheckpoint()})
    _, _, result = drive(stage, Scripted(wanted))
    assert result.proactive_saves == 1


def test_a_run_with_a_policy_that_does_nothing_goes_as_one_without(bundle):
    stage = scene_of(bundle, seed=2)
    _, _, watched = drive(stage, Scripted(lambda view: []))
    arm = Arm(name="alone", kind="baseline", what="")
    alone = play(setting_of(bundle), arm, stage)
    assert {k: v / SECOND_NS for k, v in watched.buckets.items()} == alone.buckets


def test_the_kernel_learns_of_a_lost_worker_and_of_the_one_that_takes_its_place(tmp_path):
    nodes = scene_of(write(tmp_path / "a.tltrace", [])).nodes
    start_h = (scene_of(write(tmp_path / "b.tltrace", [])).start_ns - START_NS) / HOUR_NS
    stage = scene_of(write(tmp_path / "c.tltrace", [event(0, start_h + 5.0, nodes[1])]))
    seen = []

    def look(view):
        seen.append((view.now_ns, dict(zip(view.node, view.state, strict=True)), view.faults))
        return []

    drive(stage, Scripted(look))
    before, after = seen[28], seen[35]
    assert before[1][nodes[1]] == "training"
    assert before[1][nodes[4]] == "standby"
    assert after[1][nodes[4]] == "training"
    assert {fault.kind for fault in after[2]} == {"gpu", "exit"}
    assert all(fault.ts_ns == stage.hits[0].ts_ns for fault in after[2])


@pytest.mark.parametrize(
    ("lasts_s", "lifts", "taken"),
    [(None, False, 5), (None, True, 4), (1200.0, False, 4)],
    ids=["never", "by somebody", "by itself"],
)
def test_the_end_of_a_cordon_reaches_the_model(tmp_path, lasts_s, lifts, taken):
    empty = scene_of(write(tmp_path / "empty.tltrace", []))
    start_h = (empty.start_ns - START_NS) / HOUR_NS
    lost = event(0, start_h + 5.0, empty.nodes[1])
    stage = scene_of(write(tmp_path / "lost.tltrace", [lost]))
    standby = stage.nodes[4]
    trains = []

    actions = {3: CordonNode(node=standby, lasts_s=lasts_s)}
    if lifts:
        actions[6] = UncordonNode(node=standby)

    def wanted(view):
        trains.append({n for n, s in zip(view.node, view.state, strict=True) if s == "training"})
        return at_ticks(stage, actions)(view)

    drive(stage, Scripted(wanted))
    assert trains[40] == {stage.nodes[row] for row in (0, 2, 3, taken)}


def test_an_admitted_standby_trains_if_recovery_is_per_step(tmp_path):
    config = replace(CONFIG, evaluate=replace(JOB, recovery="per_step"))
    stage = quiet(tmp_path, config.evaluate)
    states = []

    def wanted(view):
        states.append(view.state[4])
        return once_admitted(view)

    once_admitted = at_ticks(stage, {3: AdmitGroup(group="g4")})
    loop, _, result = drive(stage, Scripted(wanted), config=config)
    assert states[1:5] == ["standby", "standby", "training", "training"]
    assert (loop.operations.granted, result.migrations) == ({"admit": 1.0}, 0)
    idle = result.buckets["spare"] / (result.wall_ns * 8)
    assert idle == pytest.approx(2.0, abs=0.05)  # the cold spares


@pytest.mark.slow
def test_a_run_that_loses_only_a_step_is_saved_less_often_than_one_that_rolls_back(bundle):
    saves = {}
    for recovery in ("restart", "per_step"):
        config = replace(CONFIG, evaluate=replace(JOB, recovery=recovery))
        arm = next(a for a in baselines(policies(), JOB) if a.name == "daly_online")
        stage = scene_of(bundle, evaluate=config.evaluate, seed=2)
        loop, _, result = drive(stage, real(arm, stage, bundle, config), arm, config)
        reason_text = [verdict.reason for _, verdict in loop.verdicts][-1]
        found = re.search(r"(\d+) of (\d+) rolled the run back", reason_text)
        back, watched = map(int, found.groups())
        assert watched > 0
        assert back == (watched if recovery == "restart" else 0)
        saves[recovery] = result.saves
    assert 1.3 * saves["per_step"] < saves["restart"]


# --- what is not as it was recorded ---


def test_a_decision_on_a_worker_that_sits_elsewhere_than_recorded_is_counted_as_invalid(bundle):
    stage = dataclasses.replace(scene_of(bundle), hits=())
    heat = []

    actions = {3: Migrate(group="g0"), 30: Migrate(group="g4")}

    def wanted(view):
        heat.append(view.latest("gpu_temp_celsius"))
        return at_ticks(stage, actions)(view)

    _, fleet, result = drive(stage, Scripted(wanted, METRICS))
    assert result.migrations == 2
    assert fleet.decisions == 2
    # The second moves the former standby, whose node was not at work in the recording.
    assert fleet.invalid_decisions == 1
    assert np.isfinite(heat[2][:4]).all()
    assert np.isnan(heat[28][4])


def test_every_worker_reports_the_telemetry_of_its_node(bundle):
    (table,) = bundle.telemetry(metrics=["ecc_total"])
    came = [table[name].to_pylist() for name in ("t_avail", "component", "value")]
    newest: dict[str, list[tuple[int, float]]] = {}
    for ns, node, value in zip(*came, strict=True):
        newest.setdefault(node, []).append((ns, value))
    seen = []

    def wanted(view):
        seen.append((view.now_ns, view.node, view.latest("ecc_total").tolist()))
        return []

    stage = dataclasses.replace(scene_of(bundle), hits=())
    _, fleet, _ = drive(stage, Scripted(wanted, ["ecc_total"]))
    assert fleet.invalid_decisions is None  # no load-dependent metric was read
    now_ns, nodes, values = seen[5]
    assert len({*nodes}) > 1
    assert values == [[v for ns, v in newest[node] if ns <= now_ns][-1] for node in nodes]


# --- plugins that fail ---


def test_a_policy_that_raises_is_quarantined_and_the_run_goes_on(bundle):
    stage = scene_of(bundle)
    loop, _, result = drive(stage, Scripted(lambda view: 1 / 0))
    assert "raised: ZeroDivisionError" in loop.quarantined["scripted"]
    assert result.wall_s == pytest.approx(JOB.days * DAY_NS / SECOND_NS)


def test_an_alert_is_no_decision(bundle):
    stage = scene_of(bundle)

    def wanted(view):
        return [Proposal(action=Alert(worker=view.workers[0], text="hot"), reason="hot")]

    loop, fleet, _ = drive(stage, Scripted(wanted))
    assert any(verdict.granted for _, verdict in loop.verdicts)
    assert fleet.decisions == 0


# --- oracles ---


@pytest.mark.slow
def test_the_oracle_avoids_what_can_be_avoided_and_the_clairvoyant_loses_next_to_nothing(bundle):
    arms = {arm.name: arm for arm in baselines(policies(), JOB)}
    runs = {
        name: [simulate(setting_of(bundle), arms[name], seed) for seed in range(4)]
        for name in ("no_failures", "daly", "oracle", "clairvoyant")
    }
    mean = {name: np.mean([run.goodput for run in of]) for name, of in runs.items()}
    assert mean["no_failures"] > mean["clairvoyant"] > mean["oracle"] > mean["daly"]
    reason_text = sum(run.right_moves for run in runs["oracle"])
    assert reason_text == sum(run.moves for run in runs["oracle"])
    assert sum(run.failures for run in runs["oracle"]) < sum(run.failures for run in runs["daly"])
