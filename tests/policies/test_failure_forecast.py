import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.config import Costs
from torchloom_core.plugin import Alert, DrainGroup, Forecast, Migrate
from torchloom_core.testing import view_of
from torchloom_policies.failure_forecast import FailureForecastPolicy

COSTS = Costs(gpus_per_worker=8, detect_s=5, restart_s=30, unsaved_s=5, replace_s=100, migrate_s=2)
GROUPS = ["a", "a", "b", "b", "spare", "spare"]
STATES = ["training"] * 4 + ["standby"] * 2


def policy(**options):
    return FailureForecastPolicy(FailureForecastPolicy.Options(**options))


def fleet(hazard, forecast_id="f1", why=None, **view):
    forecast = Forecast(
        id=forecast_id, predictor="trend", horizon_s=60.0, hazard=hazard, why=why or {}
    )
    view = {"workers": 6, "group": GROUPS, "state": STATES, "costs": COSTS, **view}
    return view_of(forecasts=[forecast], **view)


def test_a_group_whose_loss_exceeds_the_price_is_migrated():
    (proposal,) = policy().on_tick(fleet({"w2": 0.5}, why={"w2": "too hot"}))
    assert proposal.action == Migrate(group="b")
    assert proposal.gain_gpu_s == (5 + 30 + 5) * 32 + 100 * 16
    assert proposal.cost_gpu_s == 2 * 32
    assert proposal.confidence == pytest.approx(0.5)
    assert proposal.cause == ("f1",)
    assert proposal.reason == (
        "group b fails within 60 s with probability 0.50, first w2 on n2 (too hot): that would "
        "cost 2880 GPU-s, leaving in time 64"
    )


def test_a_groups_probability_is_that_of_any_of_its_workers():
    (proposal,) = policy().on_tick(fleet({"w2": 0.5, "w3": 0.4, "w0": 0.05}))
    assert proposal.confidence == pytest.approx(1 - 0.5 * 0.6)


def test_what_does_not_pay_is_left_alone():
    dear = Costs(gpus_per_worker=8, detect_s=5, restart_s=0, replace_s=0, migrate_s=10)
    assert not list(policy().on_tick(fleet({"w2": 0.9}, costs=dear)))


def test_an_unlikely_failure_is_left_alone_whatever_the_price():
    assert not list(policy(min_probability=0.6).on_tick(fleet({"w2": 0.5})))


def test_each_forecast_is_acted_on_once():
    forecaster = policy()
    assert len(list(forecaster.on_tick(fleet({"w2": 0.9})))) == 1
    assert not list(forecaster.on_tick(fleet({"w2": 0.9})))
    assert len(list(forecaster.on_tick(fleet({"w2": 0.9}, "f2")))) == 1


def test_no_forecast_means_no_proposal():
    assert not list(policy(predictor="ewma").on_tick(fleet({"w2": 0.9})))


def test_only_workers_that_train_are_moved():
    hazards = {"w4": 1.0, "w5": 1.0, "stranger": 1.0}
    assert not list(policy().on_tick(fleet(hazards)))
    states = ["gone", "draining", "left", "joining", "standby", "standby"]
    certain = {f"w{i}": 1.0 for i in range(4)}
    assert not list(policy().on_tick(fleet(certain, state=states)))


def test_a_certain_failure_has_confidence_one():
    (proposal,) = policy().on_tick(fleet({"w2": 1.0}))
    assert proposal.confidence == 1.0


@pytest.mark.parametrize(
    "unfit",
    [
        {"state": ["training"] * 4 + ["gone"] * 2},
        {"state": ["training"] * 4 + ["standby", "gone"]},
        {"node": ["n0", "n1", "n2", "n3", "n2", "n5"]},
    ],
    ids=["none", "too small", "on the same node"],
)
def test_without_a_standby_that_fits_people_are_told(unfit):
    (proposal,) = policy().on_tick(fleet({"w2": 0.9}, **unfit))
    assert isinstance(proposal.action, Alert)
    assert proposal.action.worker == "w2"
    assert proposal.action.text.endswith("no stand-by can take over")


def test_without_a_standby_a_group_is_drained_if_that_is_wanted_and_pays():
    states = ["training"] * 4 + ["gone"] * 2
    (proposal,) = policy(drain_without_standby=True).on_tick(fleet({"w2": 0.9}, state=states))
    assert proposal.action == DrainGroup(group="b")
    assert proposal.cost_gpu_s == 2 * 32 + 100 * 16
    assert not list(
        policy(drain_without_standby=True).on_tick(fleet({"w2": 0.5}, "f2", state=states))
    )


def test_a_shorter_horizon_lowers_the_probability():
    (proposal,) = policy(horizon_s=30.0).on_tick(fleet({"w2": 0.75}))
    assert proposal.confidence == pytest.approx(0.5)
    assert "within 30 s" in proposal.reason


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=4, max_size=4))
def test_every_proposal_is_worth_its_price(hazards):
    hazard = {f"w{i}": p for i, p in enumerate(hazards)}
    for proposal in policy(min_probability=0.0).on_tick(fleet(hazard)):
        assert proposal.net_gpu_s > 0
        assert 0 <= proposal.confidence <= 1
