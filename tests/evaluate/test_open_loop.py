import struct

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.episodes import (
    CONFIG,
    DAY_NS,
    HOUR_NS,
    START_NS,
    candidate,
    event,
    some_events,
    write,
)
from tests.fitting.models import changed
from tests.kernel.runs import hello, telemetry
from torchloom_core.config.loading import parse
from torchloom_core.config.schema import Role
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import ModelError, PluginError
from torchloom_core.lab.activation.activation import activate
from torchloom_core.lab.activation.discovery import discover
from torchloom_core.lab.evaluate.arm import Arm
from torchloom_core.lab.evaluate.assumptions import of_replay
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.evaluate.forecasts.scoring import scorer_of, split_ns
from torchloom_core.lab.evaluate.goodput.candidates import Forecaster
from torchloom_core.lab.evaluate.open_loop import replay_policies
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.model import Model
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.recorded.recorded import (
    from_trajectory,
    recorded_incarnation,
    recorded_inputs,
)
from torchloom_core.live.dispatch.policy_guard import RecordedGuard
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire.codec import encode_telemetry
from torchloom_core.wire.decisions import Verdict
from torchloom_core.wire.events import Recovered, Tick
from torchloom_core.wire.messages import Telemetry

TASK = Task(horizon_s=21_600.0, repair_s=86_400.0, merge_s=0.0)
HOT = """
[arbiter]
cooldown_s = 3.0
min_groups = 0
max_in_motion_share = 1.0
[[policies.thresholds.rules]]
metric = "heat"
level = 90.0
[[policies.thresholds.rules]]
metric = "heat"
level = 95.0
action = "drain"
gain_gpu_s = 100.0
"""
HISTORY = {"every_s": 3600.0, "horizon_s": 21_600.0}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "small.tltrace"
    return write(path, some_events(count=60), metrics=("heat",))


# --- policies ---


def live(folder, config, **of_b):
    """Let a kernel live through rising and falling heat, and record it."""
    kernel = Kernel(config, activate(config, discover(), "test"), RecordedGuard())
    writer = TrajectoryWriter(folder / "run", "run", 1, config, {}, START_NS)
    shown, now_ns = [], START_NS
    script = [Recovered(epoch=1), hello("a-0"), hello("b-0", **of_b)]
    for number in range(40):
        for worker, phase in (("a-0", 0.0), ("b-0", 2.0)):
            heat = 90.0 + 8.0 * np.sin(number / 4 + phase)
            stamps = struct.pack("<q", START_NS + number * SECOND_NS)
            values = struct.pack("<d", heat)
            script.append(telemetry(worker, {"heat": 0.0}, ts_ns=stamps, values=values))
        script.append(Tick())
    for message in script:
        outputs = kernel.step(message, now_ns)
        shown += [output for output in outputs if isinstance(output, Verdict)]
        if isinstance(message, Telemetry):
            writer.telemetry(encode_telemetry(message), now_ns)
        else:
            writer.event(message, now_ns, outputs)
        now_ns += isinstance(message, Tick) * SECOND_NS
    writer.close()
    from_trajectory(folder / "run", folder / "incarnation.tltrace")
    return shown, Bundle.open(folder / "incarnation.tltrace")


def test_a_policy_proposes_the_same_in_replay_as_live(tmp_path):
    config = parse(HOT)
    shown, recorded = live(tmp_path, config)
    assert any(verdict.granted for verdict in shown)
    assert any(not verdict.granted for verdict in shown)
    incarnation = recorded_incarnation(recorded)
    kernel = Kernel(
        incarnation.config,
        activate(incarnation.config, discover(), "test"),
        RecordedGuard(incarnation.overruns),
    )
    again = [
        one
        for ts_ns, message in recorded_inputs(recorded)
        for one in kernel.step(message, ts_ns)
        if isinstance(one, Verdict)
    ]
    assert list(map(msgspec.json.encode, again)) == list(map(msgspec.json.encode, shown))

    arm = Arm(name="hot", kind="candidate", what="", policies=config.policies)
    replayed = replay_policies(recorded, arm, CONFIG, TASK)
    assert replayed.granted == sum(verdict.granted for verdict in shown)
    assert sum(replayed.denied_by.values()) == sum(not verdict.granted for verdict in shown)


def test_a_recorded_run_of_two_roles_is_replayed_by_the_policies_of_each(tmp_path):
    rule = {"metric": "heat", "level": 92.0, "gain_gpu_s": 1.0}
    config = parse(HOT)
    own = {"rollout": Role(policies={"thresholds": {"rules": [rule]}})}
    shown, recorded = live(tmp_path, replace(config, roles=own), role="rollout")
    assert {verdict.policy for verdict in shown} == {"thresholds", "rollout.thresholds"}
    assert {place.role for place in recorded.placement()} == {"trainer", "rollout"}

    both = Arm(name="both", kind="candidate", what="", policies=config.policies)
    both = replace(both, roles={"rollout": own["rollout"].policies})
    assert replay_policies(recorded, both, CONFIG, TASK).proposals == len(shown)
    trainers = replace(both, roles={})
    of_trainers = [verdict for verdict in shown if verdict.policy == "thresholds"]
    assert replay_policies(recorded, trainers, CONFIG, TASK).proposals == len(of_trainers)


def test_proposals_count_as_alarms_of_the_nodes_they_are_about(tmp_path):
    """``n3`` is hot for an hour before it fails, ``n5`` for nothing."""
    path = tmp_path / "hot.tltrace"
    write(path, [event(0, 60.0, "n3"), event(1, 100.0, "n6")], metrics=("heat",))
    arm = candidate(
        policies={"failure_forecast": {"predictor": "fault_history", "min_probability": 0.0}}
    )
    quiet = replay_policies(Bundle.open(path), arm, CONFIG, TASK, from_ns=START_NS + 90 * HOUR_NS)
    assert quiet.incidents == 1
    # What n3 had before the beginning is known: it is suspected, and wrongly.
    assert quiet.proposals > 0
    assert quiet.false_alarms_per_node_day > 0


@pytest.mark.parametrize(("takes_h", "proposals"), [(1.0, True), (49.0, False)])
def test_what_a_forecast_takes_too_long_for_is_never_proposed(bundle, takes_h, proposals):
    arm = candidate()
    config = replace(CONFIG, evaluate=replace(CONFIG.evaluate, forecast_s=takes_h * 3600.0))
    replayed = replay_policies(bundle, arm, config, TASK, from_ns=START_NS + 4 * DAY_NS)
    assert (replayed.proposals > 0) is proposals


def test_a_migration_is_denied_if_the_trace_has_no_standby(bundle):
    table = {"rules": [{"metric": "heat", "level": 1.0, "action": "migrate", "gain_gpu_s": 1.0}]}
    arm = Arm(name="sure", kind="candidate", what="", policies={"thresholds": table})
    replayed = replay_policies(bundle, arm, CONFIG, TASK)
    assert replayed.granted == 0
    assert set(replayed.denied_by) == {"impossible"}


# --- forecasts ---


def of(**tables):
    """Return the predictors to test, by name, with their tables."""
    return [Forecaster(label=name, name=name, table=table) for name, table in tables.items()]


def test_only_the_time_after_the_split_is_scored(bundle):
    (score,) = scorer_of(bundle, of(fault_history=HISTORY), CONFIG).scores()
    assert score.from_ns >= split_ns(bundle)
    assert score.threshold_from == "before 3.6 d"
    assert set(score.versus) == {"random"}
    until_ns = START_NS + 4 * DAY_NS
    (score,) = scorer_of(bundle, of(fault_history=HISTORY), CONFIG, until_ns=until_ns).scores()
    assert score.from_ns >= until_ns


def test_predictors_with_the_same_times_are_compared(bundle):
    trend = {"metric": "heat", "window_s": 7200.0, "level": 70.0, **HISTORY}
    tested = of(fault_history=HISTORY, trend=trend)
    shares = []
    first, second = scorer_of(bundle, tested, CONFIG).scores(shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert set(first.versus) == {"random", "trend"}
    assert second.versus["fault_history"].value == pytest.approx(-first.versus["trend"].value)


def test_a_predictor_that_cannot_be_built_is_one_line(bundle):
    too_long = {"metric": "heat", "window_s": 1e9}
    with pytest.raises(PluginError, match=r"trend.*need window_s"):
        scorer_of(bundle, of(trend=too_long), CONFIG).scores()


def test_a_model_whose_calibration_ran_into_its_bound_is_flagged(bundle, fitted, tmp_path):
    model = Model.load(fitted)
    for log_slope, flags in ((-3.0, ("calibration_at_bound: lower",)), (0.5, ())):
        fitted_so = replace(model.info, calibration=Calibration(slope=float(np.exp(log_slope))))
        path = tmp_path / "m.tlmodel"
        Model(fitted_so, model.parts, model.card).save(path, force=True)
        tested = of(fault_history={"model": str(path)})
        (score,) = scorer_of(bundle, tested, CONFIG).scores()
        assert score.flags == flags


def test_a_model_is_scored_by_the_task_that_it_was_fitted_for(bundle, fitted, tmp_path):
    model, path = Model.load(fitted), tmp_path / "m.tlmodel"

    def scored(trace=bundle, **changes):
        changed(model, **changes).save(path, force=True)
        tested = of(fault_history={"model": str(path)})
        return scorer_of(trace, tested, CONFIG).scores()[0]

    own = scored()
    assert (own.task, own.lead_s) == ("forecast", 0.0)
    assert own.incidents > scored(kinds=("another",)).incidents == 0
    assert scored(lead_s=3600.0).lead_s == 3600.0
    assert scored(task="detect").task == "detect"
    unknown = Bundle.open(bundle.path)
    unknown.events = lambda: tuple(replace(one, t_resolved=None) for one in bundle.events())
    assert scored(unknown, repair_s=60.0).samples > scored(unknown).samples


@pytest.fixture(scope="module")
def fitted(bundle, tmp_path_factory):
    from torchloom_core.lab.fitting.fit import fit
    from torchloom_core.lab.fitting.time_split import FitSettings

    info = next(i for i in discover() if i.name == "fault_history")
    until = FitSettings(until_ns=START_NS + 3 * DAY_NS, tick_s=3600.0, repair_s=86_400.0)
    model = fit(bundle, info, HISTORY, until)
    path = tmp_path_factory.mktemp("model") / "history.tlmodel"
    model.save(path)
    return path


def test_a_model_that_detects_is_scored_and_no_policy_acts_on_it(bundle, fitted, tmp_path):
    model = Model.load(fitted)
    path = tmp_path / "now.tlmodel"
    changed(model, task="detect").save(path)
    table = {"model": str(path)}
    (score,) = scorer_of(bundle, of(fault_history=table), CONFIG).scores()
    assert score.task == "detect"
    options = {"predictor": "fault_history", "accept_unskilled": True}
    arm = candidate(policies={"failure_forecast": options}, predictors={"fault_history": table})
    with pytest.raises(ModelError, match=r"now\.tlmodel: need .* --task forecast, was detect"):
        replay_policies(bundle, arm, CONFIG, TASK)


def test_a_model_is_scored_with_its_own_repair_time_and_a_note(bundle, fitted, tmp_path, caplog):
    """All failures but one have a known end; the assumed repair decides which samples count."""
    open_end = replace(event(200, 24 * 5.0, "n7"), t_resolved=None)
    trace = write(tmp_path / "open.tltrace", [*some_events(count=60), open_end])
    model = Model.load(fitted)
    path = tmp_path / "m.tlmodel"
    samples = {}
    for own_s in (3600.0, 86_400.0):
        info = replace(model.info, repair_s=own_s)
        Model(info, model.parts, model.card).save(path, force=True)
        caplog.clear()
        tested = of(fault_history={"model": str(path)})
        (score,) = scorer_of(trace, tested, CONFIG).scores()
        samples[own_s] = score.samples
        shown = [line for line in caplog.messages if "repair" in line]
        differs = own_s != CONFIG.evaluate.repair_s
        assert shown == [
            "fault_history: scored with the model's repair_s of 3600 s for failures without a "
            "known end; [evaluate] repair_s is 86400."
        ] * differs  # fmt: skip
        assert (shown[:1] == list(of_replay(tested, CONFIG))[:1]) == differs
    assert samples[3600.0] > samples[86_400.0]


def test_a_replay_quotes_the_verdict_of_the_model_card(fitted):
    card = Model.load(fitted).card
    shown = " ".join(of_replay(of(fault_history={"model": str(fitted)}), CONFIG))
    assert (
        f"verdict of its model card, against baselines on {card.trace}: {card.verdict.sentence}"
        in shown
    )
    assert "the card of its model" not in " ".join(of_replay(of(fault_history={}), CONFIG))
