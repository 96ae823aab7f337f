import math

import numpy as np
import pytest

from tests.predictors.fault_bursts import grid
from torchloom_core.interface.needs import labels_read
from torchloom_core.lab.learning import FaultColumns
from torchloom_core.plugin import Example, Fault, ModelError, NeedFaults, PluginError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.fault_history import FaultHistoryPredictor

NOW_S = 1_000_000.0
HOUR_S, DAY_S = 3600.0, 86_400.0


class TestContract(LearnerContract):
    predictor_class = FaultHistoryPredictor


def predictor(**options):
    return FaultHistoryPredictor(FaultHistoryPredictor.Options(**options))


def forecast(faults, workers=4, node=("a", "a", "b", "b"), **view):
    live = predictor(half_life_s=6 * HOUR_S, fit_half_lives_s=(), horizon_s=HOUR_S)
    return live.forecast(view_of(workers=workers, node=node, faults=faults, now_s=NOW_S, **view))


def fault(node, age_s, worker="w0"):
    ts_ns = round((NOW_S - age_s) * 1e9)
    return Fault(worker=worker, node=node, kind="exit", ts_ns=ts_ns, id=f"{worker}-{age_s}")


def rate_per_day(hazard, workers):
    """Return the node's rate that a worker's hazard within an hour came from."""
    return -math.log1p(-hazard) * 24 * workers


EXPOSURE_DAYS = 1.0 + 0.25 / math.log(2)


def test_a_node_with_a_fault_is_worse_than_its_peers():
    hazard = forecast([fault("b", 60.0, "w2")])
    assert hazard.probability[2] > 10 * hazard.probability[0]
    assert hazard.probability[2] == hazard.probability[3]
    text = "b had 1 fault in the last 1 min, decayed to 1"
    assert hazard.why == {2: text, 3: text}


def test_the_rate_is_the_gamma_priors_posterior_mean():
    hazard = forecast([fault("a", 12 * HOUR_S), fault("a", 6 * HOUR_S), fault("a", 0.0)])
    expected = (0.0065 + 0.25 + 0.5 + 1.0) / EXPOSURE_DAYS
    assert rate_per_day(hazard.probability[0], 2) == pytest.approx(expected)
    assert rate_per_day(hazard.probability[2], 2) == pytest.approx(0.0065 / EXPOSURE_DAYS)


def test_a_nodes_workers_together_have_its_hazard():
    faults = [fault("a", 0.0)]
    alone = forecast(faults, workers=1, node=("a",)).probability
    shared = forecast(faults, workers=8, node=["a"] * 8).probability
    assert 1 - np.prod(1 - shared) == pytest.approx(alone[0])


def test_a_node_that_took_all_its_workers_along_failed_once():
    together = [fault("a", 600.0 + i, f"w{i}") for i in (2, 1, 0)]
    apart = [fault("a", 600.0), fault("a", 300.0)]
    one, two = forecast(together), forecast(apart)
    assert one.why[0].startswith("a had 1 fault in")
    assert two.why[0].startswith("a had 2 faults in")
    assert two.probability[0] > 1.5 * one.probability[0]


def test_a_worker_without_a_node_counts_as_its_own_node():
    hazard = forecast([fault("", 0.0, "w1")], workers=2, node=("", ""))
    assert hazard.probability[1] > 10 * hazard.probability[0]
    assert list(hazard.why) == [1]


def test_a_gone_worker_gets_no_forecast_and_no_share_of_the_rate():
    hazard = forecast([fault("a", 0.0)], state=["gone", "training", "left", "training"])
    assert np.isnan(hazard.probability).tolist() == [True, False, True, False]
    assert rate_per_day(hazard.probability[1], 1) == pytest.approx(1.0065 / EXPOSURE_DAYS)


def days_fitted(**options):
    return predictor(horizon_s=7 * DAY_S, every_s=DAY_S, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("truth_days", "allowed"), [(1.5, (0.25, 1.0)), (20.0, (10.0, 20.0, 40.0))]
)
def test_fitting_finds_how_fast_the_past_fades(truth_days, allowed):
    learner = days_fitted()
    learner.fit(grid(truth_days))
    assert learner._learned.half_life_s / DAY_S in allowed


@pytest.mark.slow
def test_a_fitted_rate_comes_true_on_average():
    learner, examples = days_fitted(), grid(10.0)
    learner.fit(examples[:150])
    predicted = np.mean([learner.forecast(e.view).probability for e in examples[157:]])
    assert predicted == pytest.approx(np.mean([e.outcome for e in examples[157:]]), rel=0.35)


@pytest.mark.slow
def test_sampling_healthy_rows_does_not_change_rate_and_half_life():
    whole, sampled = days_fitted(), days_fitted(max_healthy=3000)
    whole.fit(grid(10.0))
    sampled.fit(grid(10.0))
    one, other = whole._learned, sampled._learned
    assert other.prior_faults_per_day == pytest.approx(one.prior_faults_per_day, rel=0.01)
    assert (other.half_life_s, other.prior_days) == (one.half_life_s, one.prior_days)


def test_without_other_half_lives_only_the_prior_is_learned():
    learner = days_fitted(half_life_s=3 * DAY_S, fit_half_lives_s=())
    learner.fit(grid(20.0, days=60))
    assert learner._learned.half_life_s == 3 * DAY_S
    assert learner._learned.prior_faults_per_day != 0.0065
    assert learner.needs == (NeedFaults(15 * DAY_S),)


def test_what_was_learned_comes_back_to_the_bit():
    learner, examples = days_fitted(), grid(10.0, days=60)
    learner.fit(examples)
    again = days_fitted()
    again.restore(learner.parts())
    view = examples[-1].view
    assert again.forecast(view).probability.tolist() == learner.forecast(view).probability.tolist()
    assert again.parts() == learner.parts()


def test_nothing_is_learned_without_a_failure():
    quiet = [Example(view=e.view, outcome=0 * e.outcome) for e in grid(10.0, days=20)]
    with pytest.raises(PluginError, match="fault_history: need a failure to learn from, was none"):
        days_fitted().fit(quiet)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "fault_history.json: need this part of a fitted model, was none"),
        (
            {"fault_history.json": b"{"},
            "fault_history.json: need Learned as JSON: Input data",
        ),
        (
            {
                "fault_history.json": b'{"half_life_s": 5.0, "prior_days": 1.0,'
                b' "prior_faults_per_day": 0.1}'
            },
            "need half_life_s of the options, 21600, 86400, .* was 5",
        ),
    ],
)
def test_a_damaged_part_is_refused(parts, message):
    with pytest.raises(ModelError, match=message):
        predictor().restore(parts)


def test_the_history_of_a_view_is_computed_once(monkeypatch):
    calls = []
    compute = FaultColumns.compute
    monkeypatch.setattr(FaultColumns, "compute", lambda *of: calls.append(of) or compute(*of))
    live = predictor()
    view = view_of(workers=2, labels=({"owner": "a"}, {"owner": "b"}))
    live.gathering().add(Example(view=view, outcome=np.array([0.0, 1.0])))
    live.forecast(view.with_labels(labels_read(live.needs)))
    assert len(calls) == 1
