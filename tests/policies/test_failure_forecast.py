import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.kernel.runs import Run, active, hello, make_kernel, of, only
from torchloom_core.config.schema import Costs
from torchloom_core.plugin import (
    Alert,
    CordonNode,
    DrainGroup,
    Fault,
    Forecast,
    Migrate,
    NeedForecast,
)
from torchloom_core.testing import view_of
from torchloom_core.testing.views import EPOCH_S
from torchloom_core.wire.decisions import ForecastWanted, Issue, Outcome, Proposed, Verdict
from torchloom_core.wire.operations import Drain, Join
from torchloom_policies.failure_forecast import FailureForecastPolicy

COSTS = Costs(gpus_per_worker=8, detect_s=5, restart_s=30, unsaved_s=5, replace_s=100, migrate_s=2)
GROUPS = ["a", "a", "b", "b", "spare", "spare"]
STEP = {
    "step_time_s": 1.0,
    "wire_s": 0.8,
    "sent_bytes": 1e7,
    "state_bytes": 1.25e7,
    "round_s": np.nan,
}
STATES = ["training"] * 4 + ["standby"] * 2


def policy(**options):
    return FailureForecastPolicy(FailureForecastPolicy.Options(**options))


def fleet(hazard, forecast_id="f1", why=None, horizon_s=60.0, **view):
    forecast = Forecast(
        id=forecast_id, predictor="trend", horizon_s=horizon_s, hazard=hazard, why=why or {}
    )
    view = {"workers": 6, "group": GROUPS, "state": STATES, "costs": COSTS, **view}
    rows = len(view["group"])
    metrics = {"unsaved_work_s": np.full(rows, view.pop("unsaved_work_s", np.nan))}
    step = {**dict.fromkeys(STEP, np.nan), **view.pop("step_metrics", {})}
    metrics |= {name: np.full((rows, 60), value) for name, value in step.items()}
    return view_of(metrics, forecasts=[forecast], predictors=["ewma"], **view)


def exits(judge, view):
    """Return the proposals except cordons and alerts on min_probability."""
    proposals = [p for p in judge.on_tick(view) if not isinstance(p.action, CordonNode)]
    return [p for p in proposals if "min_probability" not in p.reason]


def minimum_alerts(judge, view):
    return [p for p in judge.on_tick(view) if "min_probability" in p.reason]


def cordons(judge, view):
    return [p for p in judge.on_tick(view) if isinstance(p.action, CordonNode)]


def later(seconds):
    return {"now_s": EPOCH_S + seconds}


def test_a_group_whose_loss_exceeds_the_price_is_migrated():
    (proposal,) = exits(policy(), fleet({"w2": 0.5}, why={"w2": "too hot"}))
    assert proposal.action == Migrate(group="b")
    assert proposal.gain_gpu_s == (5 + 30 + 5) * 32 + 100 * 16
    assert proposal.cost_gpu_s == 2 * 32
    assert proposal.confidence == pytest.approx(0.5)
    assert proposal.cause == ("f1",)
    assert proposal.reason == (
        "group b fails within 60 s with probability 0.50, most likely w2 on n2 (too hot): a "
        "failure costs 2880 GPU-s, a move 64"
    )


def test_the_cost_includes_the_state_transfer_over_a_busy_network():
    (proposal,) = exits(policy(), fleet({"w2": 0.5}, step_metrics=STEP))
    assert proposal.action == Migrate(group="b")
    assert proposal.cost_gpu_s == pytest.approx(2 * 32 + 1.0 * 0.8 * 32)
    assert proposal.reason.endswith(
        "a move 90; the state (12.5 MB) takes 1 s of a network that is 80% busy: 26 GPU-s"
    )
    dear = {**STEP, "state_bytes": 1.25e9}
    assert not exits(policy(), fleet({"w2": 0.5}, step_metrics=dear))


def test_a_groups_probability_is_that_of_any_of_its_workers():
    (proposal,) = exits(policy(), fleet({"w2": 0.5, "w3": 0.4, "w0": 0.05}))
    assert proposal.confidence == pytest.approx(1 - 0.5 * 0.6)


def test_a_failure_below_min_probability_leads_to_no_move():
    assert not exits(policy(min_probability=0.6), fleet({"w2": 0.5}))


def test_one_alert_reports_that_only_min_probability_prevents_a_move():
    judge = policy(min_probability=0.6)
    (alert,) = minimum_alerts(judge, fleet({"w2": 0.5}))
    assert alert.action == Alert(worker="w2", text=alert.reason)
    assert alert.reason == (
        "group b fails within 60 s with probability 0.5. A move pays from 0.022 on, but "
        "min_probability = 0.6 prevents it, here and for other groups below it"
    )
    assert not minimum_alerts(judge, fleet({"w2": 0.55}, "f2", **later(600)))


def test_there_is_no_alert_on_min_probability_if_a_move_does_not_pay_anyway():
    assert not minimum_alerts(policy(), fleet({"w2": 0.02}))
    assert minimum_alerts(policy(), fleet({"w2": 0.03}))
    assert not minimum_alerts(policy(), fleet({"w2": 0.03, "w4": 0.02}))  # the standby's own risk
    assert not minimum_alerts(policy(min_probability=0.0), fleet({"w2": 0.03}))
    assert not minimum_alerts(policy(), fleet({"w2": 0.5}))


def test_the_alert_on_min_probability_needs_no_standby_and_comes_beside_a_move():
    states = ["training"] * 4 + ["gone"] * 2
    assert minimum_alerts(policy(), fleet({"w2": 0.05}, state=states))
    assert minimum_alerts(policy(), fleet({"w0": 0.05, "w2": 0.5}))


def test_a_group_is_proposed_once_per_horizon():
    forecaster = policy()
    assert len(exits(forecaster, fleet({"w2": 0.6}))) == 1
    assert not exits(forecaster, fleet({"w2": 0.6}))
    assert not exits(forecaster, fleet({"w2": 0.7}, "f2", **later(30)))
    assert len(exits(forecaster, fleet({"w2": 0.7}, "f3", **later(60)))) == 1


def test_a_group_whose_odds_have_doubled_is_proposed_again():
    forecaster = policy()
    assert len(exits(forecaster, fleet({"w2": 0.6}))) == 1
    (again,) = exits(forecaster, fleet({"w2": 0.75}, "f2", **later(1)))
    assert again.cause == ("f2",)


def test_a_group_on_other_nodes_is_proposed_again():
    forecaster = policy()
    assert len(exits(forecaster, fleet({"w2": 0.6}))) == 1
    moved = fleet({"w2": 0.6}, "f2", node=["n0", "n1", "n7", "n8", "n4", "n5"])
    assert len(exits(forecaster, moved)) == 1


def test_a_forecast_loses_weight_with_time_and_ends_with_its_horizon():
    unready = {"state": ["paused"] * 4 + ["gone"] * 2}
    forecaster = policy()
    exits(forecaster, fleet({"w2": 0.75}, **unready))
    (proposal,) = exits(forecaster, fleet({"w2": 0.75}, **later(30)))
    assert proposal.confidence == pytest.approx(0.5)
    assert "within 30 s" in proposal.reason
    forecaster = policy()
    exits(forecaster, fleet({"w2": 0.75}, **unready))
    assert not exits(forecaster, fleet({"w2": 0.75}, **later(60)))


def test_a_move_lapses_once_the_failure_is_unlikely_or_the_forecast_over():
    judge = policy()
    (move,) = exits(judge, fleet({"w0": 0.5}, "f1"))
    (cordon,) = cordons(policy(), fleet({"w0": 0.5}, "f1"))
    for proposal in (move, cordon):
        assert judge.lapsed(fleet({"w0": 0.4}, "f2"), proposal) == ""
        assert judge.lapsed(fleet({"w0": 0.02}, "f3"), proposal).endswith(
            "fails within 60 s is now 0.02, was 0.5 in the proposal"
        )
        assert "is now 0, was" in judge.lapsed(fleet({"w0": 0.0}, "f3"), proposal)
        over = judge.lapsed(fleet({"w0": 0.02}, "f3", **later(60)), proposal)
        assert over == "the forecast of trend is over"


def test_a_group_is_moved_as_soon_as_there_is_a_standby():
    forecaster = policy()
    (alert,) = exits(forecaster, fleet({"w2": 0.9}, state=["training"] * 4 + ["gone"] * 2))
    assert isinstance(alert.action, Alert)
    assert not list(
        exits(forecaster, fleet({"w2": 0.9}, state=["training"] * 4 + ["gone"] * 2, **later(1)))
    )
    (proposal,) = exits(forecaster, fleet({"w2": 0.9}, **later(2)))
    assert proposal.action == Migrate(group="b")


def test_the_only_standby_goes_to_the_group_with_the_highest_gain():
    first, second = exits(policy(), fleet({"w0": 0.5, "w2": 0.9}))
    assert first.action == Migrate(group="b")
    assert isinstance(second.action, Alert)


def test_the_failure_probability_of_the_standby_adds_to_the_cost():
    (proposal,) = exits(policy(), fleet({"w2": 0.5, "w4": 0.2, "w5": 0.0}))
    assert proposal.cost_gpu_s == pytest.approx(2 * 32 + 0.2 * proposal.gain_gpu_s)
    assert not exits(policy(), fleet({"w2": 0.5, "w4": 0.49}))


def test_a_standby_without_a_forecast_counts_as_a_typical_worker():
    hazard = dict.fromkeys(["w0", "w1", "w2", "w3"], 0.3)
    assert not exits(policy(), fleet(hazard))
    assert exits(policy(), fleet({**hazard, "w4": 0.0, "w5": 0.0}))


def test_unsaved_work_is_taken_from_the_trainer_if_reported():
    hour = Costs(gpus_per_worker=8, detect_s=5, restart_s=30, unsaved_s=1800, replace_s=0)
    late = exits(policy(), fleet({"w2": 0.5}, costs=hour, unsaved_work_s=3000.0))
    soon = exits(policy(), fleet({"w2": 0.5}, costs=hour, unsaved_work_s=60.0))
    unknown = exits(policy(), fleet({"w2": 0.5}, costs=hour))
    gains = [only_gain(proposals) / 32 - 35 for proposals in (late, soon, unknown)]
    assert gains == pytest.approx([3030.0, 90.0, 1800.0])


def only_gain(proposals):
    (proposal,) = proposals
    return proposal.gain_gpu_s


def test_a_model_without_skill_is_accepted_only_with_accept_unskilled():
    assert NeedForecast("trend", skilled=True) in policy().needs
    assert NeedForecast("trend") in policy(accept_unskilled=True).needs


def test_no_forecast_means_no_proposal():
    assert not exits(policy(predictor="ewma"), fleet({"w2": 0.9}))


def test_only_workers_that_train_are_moved():
    hazards = {"w4": 1.0, "w5": 1.0, "stranger": 1.0}
    assert not exits(policy(), fleet(hazards))
    states = ["gone", "draining", "left", "joining", "standby", "standby"]
    certain = {f"w{i}": 1.0 for i in range(4)}
    assert not exits(policy(), fleet(certain, state=states))


@pytest.mark.parametrize(
    "unfit",
    [
        {"state": ["training"] * 4 + ["gone"] * 2},
        {"state": ["training"] * 4 + ["standby", "gone"]},
        {"node": ["n0", "n1", "n2", "n3", "n2", "n5"]},
        {"cordoned": ["n5"]},
    ],
    ids=["none", "too small", "on the same node", "on a cordoned node"],
)
def test_without_a_standby_that_fits_there_is_an_alert(unfit):
    (proposal,) = exits(policy(), fleet({"w2": 0.9}, **unfit))
    assert isinstance(proposal.action, Alert)
    assert proposal.action.worker == "w2"
    assert proposal.action.text.endswith("no standby can take over")


def test_without_a_standby_a_group_is_drained_if_configured_and_worth_it():
    states = ["training"] * 4 + ["gone"] * 2
    dear = {**STEP, "state_bytes": 1.25e9}  # no state is transferred
    view = fleet({"w2": 0.9}, state=states, step_metrics=dear)
    (proposal,) = exits(policy(drain_without_standby=True), view)
    assert proposal.action == DrainGroup(group="b")
    assert proposal.cost_gpu_s == 2 * 32 + 100 * 16
    assert not exits(policy(drain_without_standby=True), fleet({"w2": 0.5}, state=states))


def test_a_shorter_horizon_lowers_the_probability():
    (proposal,) = exits(policy(horizon_s=30.0), fleet({"w2": 0.75}))
    assert proposal.confidence == pytest.approx(0.5)
    assert "within 30 s" in proposal.reason


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=4, max_size=4))
def test_every_proposal_pays(hazards):
    hazard = {f"w{i}": p for i, p in enumerate(hazards)}
    for proposal in policy(min_probability=0.0).on_tick(fleet(hazard)):
        assert proposal.net_gpu_s > 0 or isinstance(proposal.action, Alert)
        assert 0 <= proposal.confidence <= 1


# --- the cost of one standby less ---

FEW = ["training"] * 5 + ["standby"]
MORE = ["training"] * 3 + ["standby"] * 3
INSPECTED = Costs(
    gpus_per_worker=8,
    detect_s=5,
    restart_s=30,
    unsaved_s=500,
    replace_s=100,
    migrate_s=2,
    inspect_s=200,
    others_wait_s=50,
)


def singles(hazard, state, costs=INSPECTED, **view):
    """Return a view of six groups of one worker."""
    return fleet(hazard, group=list("abcdef"), state=state, costs=costs, **view)


def test_the_cost_includes_the_standby_that_the_next_failure_lacks():
    hazard = {"w0": 0.5, "w1": 0.02, "w2": 0.01, "w5": 0.0}
    (proposal,) = exits(policy(), singles(hazard, FEW))
    missed = -np.expm1(-0.03 / 60 * (200 + 100))
    away = missed * ((200 + 100) * 8 + 50 * 4 * 8)
    assert proposal.cost_gpu_s == pytest.approx(2 * 40 + away)
    assert f"a move {80 + away:.0f} ({away:.0f} of it for its nodes" in proposal.reason
    assert proposal.reason.endswith("under inspection, 0 standbys remain)")


def test_failures_without_a_forecast_count_at_their_observed_rate():
    crash = Fault(
        worker="w1", node="n1", kind="crash", ts_ns=round((EPOCH_S + 1) * 1e9), id="crash"
    )
    rule = {"w0": 0.9, "w5": 0.0}
    cost = {}
    for faults in ([], [crash]):
        judge = policy()
        assert not exits(judge, singles({}, FEW))
        view = singles(rule, FEW, forecast_id="f2", faults=faults, **later(1000))
        (proposal,) = exits(judge, view)
        cost[len(faults)] = proposal.cost_gpu_s
    assert cost[0] == 2 * 40
    missed = -np.expm1(-300 / 1000)
    assert cost[1] == pytest.approx(2 * 40 + missed * (300 * 8 + 50 * 32))


@given(
    st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3),
    st.floats(0.0, 1000.0),
    st.integers(1, 2),
)
def test_more_standbys_never_make_a_move_more_expensive(hazards, inspect_s, waiting):
    hazard = {f"w{i}": p for i, p in enumerate(hazards)} | dict.fromkeys(["w3", "w4", "w5"], 0.0)
    costs = replace(INSPECTED, inspect_s=inspect_s)

    def prices(waiting):
        state = ["training"] * 3 + ["standby"] * waiting + ["gone"] * (3 - waiting)
        proposals = policy(min_probability=0.0).on_tick(singles(hazard, state, costs))
        return {p.action: p.cost_gpu_s for p in proposals if not isinstance(p.action, Alert)}

    few, more = prices(waiting), prices(waiting + 1)
    assert few.keys() <= more.keys()
    assert all(more[what] <= few[what] for what in few)


# --- the cordons ---


def test_the_node_likely_to_fail_is_cordoned_until_the_forecast_ends():
    judge = policy()
    (cordon,) = cordons(judge, fleet({"w2": 0.5, "w3": 0.05}))
    assert cordon.action == CordonNode(node="n2", lasts_s=60.0)
    assert cordon.gain_gpu_s == (5 + 30 + 5) * 32 + 100 * 16
    assert (cordon.cost_gpu_s, cordon.cause) == (0.0, ("f1",))
    assert cordon.confidence == pytest.approx(0.5)
    assert cordon.reason == (
        "group b leaves n2, which fails within 60 s with probability 0.50: a failure costs 2880 "
        "GPU-s"
    )
    assert not cordons(judge, fleet({"w2": 0.5}, **later(1)))


def test_a_cordon_that_does_not_pay_is_not_proposed():
    hazard = {"w0": 0.5, **dict.fromkeys(["w1", "w2", "w3", "w4"], 0.3), "w5": 0.0}
    week = {"costs": replace(INSPECTED, inspect_s=0, others_wait_s=0), "horizon_s": 7 * 86_400.0}
    few = singles(hazard, FEW, **week)
    assert not cordons(policy(min_probability=0.4), few)
    assert [p.action for p in exits(policy(min_probability=0.4), few)] == [Migrate(group="a")]
    spared = ["training"] * 2 + ["standby"] * 4
    assert cordons(policy(min_probability=0.4), singles(hazard, spared, **week))


def test_the_later_a_group_leaves_the_shorter_the_cordon():
    judge = policy()
    gone = ["training"] * 4 + ["gone"] * 2
    assert not cordons(judge, fleet({"w2": 0.9}, state=gone))
    (cordon,) = cordons(judge, fleet({"w2": 0.9}, **later(45)))
    assert cordon.action.lasts_s == 15.0


def test_the_workers_of_a_node_are_evaluated_together():
    shared = ["n0", "n0", "n2", "n2", "n4", "n5"]
    (cordon,) = cordons(policy(min_probability=0.3), fleet({"w2": 0.2, "w3": 0.2}, node=shared))
    assert cordon.action.node == "n2"
    assert cordon.confidence == pytest.approx(1 - 0.8 * 0.8)
    assert not cordons(policy(min_probability=0.3), fleet({"w2": 0.2, "w3": 0.2}))


@pytest.mark.parametrize(
    "view", [{"cordoned": ["n2"]}, {"node": ["n0", "n1", "", "n3", "n4", "n5"]}]
)
def test_a_node_that_is_cordoned_already_or_unknown_is_not_cordoned(view):
    judge = policy()
    assert not cordons(judge, fleet({"w2": 0.5}, **view))
    assert len(exits(policy(), fleet({"w2": 0.5}, **view))) == 1


class Daily:
    """A predictor that runs once a day with a horizon of a week."""

    name = "daily"
    needs = ()
    horizon_s = 7 * 86_400.0
    every_s = 86_400.0


def test_a_predictor_that_runs_once_a_day_moves_each_group_once():
    config = "[costs]\nrestart_s = 600.0\n[weaver]\ntick_s = 600.0\nstale_after_s = 3600.0"
    forecaster = active("failure_forecast", policy(predictor="daily"))
    run = Run(make_kernel([forecaster], config, {"daily": Daily()}))
    for group in "abc":
        run.feed(hello(f"{group}-0"))
    wanted = only(ForecastWanted, run.tick(600.0))
    hazard = {"a-0": 0.9, "b-0": 0.001, "c-0": 0.001}
    run.feed(Forecast(id=wanted.id, predictor="daily", horizon_s=7 * 86_400.0, hazard=hazard))
    assert isinstance(only(Proposed, run.tick(600.0)).proposal.action, Alert)
    run.feed(hello("s-0", state="standby"))
    assert all(verdict.granted for verdict in of(Verdict, run.tick(600.0)))
    assert run.kernel.fleet.cordons.nodes == {"node-a"}
    (join,) = run.commands()
    assert isinstance(join.do, Join)
    run.ack(join)
    run.feed(hello("s-0", state="training", incarnation=2))
    (drain,) = [c for c in run.commands() if isinstance(c.do, Drain)]
    run.ack(drain)
    assert run.all(Outcome)[-1].result == "done"
    run.feed(hello("a-0", incarnation=2, node="elsewhere", state="standby"))
    for _ in range(200):
        run.tick(600.0)
    assert len(run.all(Proposed)) == 3
    assert len(of(Issue, run.outputs)) == 2
    assert run.kernel.fleet.cordons.nodes == {"node-a"}
    run.tick(7 * 86_400.0)
    assert run.kernel.fleet.cordons.nodes == set()
