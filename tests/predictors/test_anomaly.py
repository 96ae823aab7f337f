from typing import ClassVar

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from torchloom_core.lab.learning import estimator_bytes
from torchloom_core.plugin import Example, ModelError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.anomaly import AnomalyPredictor

TICKS, WORKERS, WINDOW = 80, 20, 8


@pytest.mark.slow
class TestPcaContract(LearnerContract):
    predictor_class = AnomalyPredictor
    supervised = False
    options: ClassVar = {"metrics": ["a", "b"], "spans_s": [4, 12]}


@pytest.mark.slow
class TestForestContract(LearnerContract):
    predictor_class = AnomalyPredictor
    supervised = False
    options: ClassVar = {"method": "forest", "metrics": ["a"], "spans_s": [4], "trees": 8}


def predictor(**options):
    wanted = {"metrics": ("watts", "temp"), "spans_s": (4.0,), "trees": 30}
    return AnomalyPredictor(AnomalyPredictor.Options(**{**wanted, **options}))


def fleet(seed, broken_share=0.0):
    """Return power, temperature that follows it but where broken, and where that is."""
    random = np.random.default_rng(seed)
    watts = 400 + 50 * random.normal(size=(WORKERS, TICKS + WINDOW))
    broken = random.random((WORKERS, TICKS)) < broken_share
    temp = 20 + watts / 10 + 0.3 * random.normal(size=watts.shape)
    temp[:, WINDOW:] += np.where(broken, 4 * random.choice([-1, 1], size=broken.shape), 0)
    return watts, temp, broken


def views(watts, temp):
    return [
        view_of(
            {"watts": watts[:, t + 1 : t + 1 + WINDOW], "temp": temp[:, t + 1 : t + 1 + WINDOW]}
        )
        for t in range(TICKS)
    ]


def fitted(**options):
    learner = predictor(**options)
    watts, temp, _ = fleet(seed=0)
    learner.fit(Example(view=view, outcome=np.full(WORKERS, np.nan)) for view in views(watts, temp))
    return learner


def test_pca_finds_what_breaks_the_relation_of_two_metrics():
    watts, temp, broken = fleet(seed=1, broken_share=0.02)
    learner = fitted(explained=0.95)
    predicted = [learner.forecast(view).probability for view in views(watts, temp)]
    assert average_precision_score(broken.T.ravel(), np.ravel(predicted)) > 10 * broken.mean()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pca", "forest"])
def test_a_worker_far_from_all_others_stands_out_with_a_reason(method):
    watts, temp, _ = fleet(seed=2)
    watts[3, -4:], temp[3, -4:] = 50.0, 99.0
    hazard = fitted(method=method).forecast(views(watts, temp)[-1])
    assert hazard.probability.argmax() == 3
    assert hazard.probability[3] > 0.5
    assert "or more times its spread from the usual" in hazard.why[3]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pca", "forest"])
def test_about_a_share_rare_of_what_it_learned_from_is_above_one_half(method):
    learner = fitted(method=method, rare=0.05)
    predicted = [learner.forecast(view).probability for view in views(*fleet(seed=0)[:2])]
    assert np.mean(np.array(predicted) > 0.5) == pytest.approx(0.05, abs=0.01)


def test_a_metric_that_disappears_is_unusual():
    watts, temp, _ = fleet(seed=2)
    temp[5, -3:] = np.nan
    hazard = fitted().forecast(views(watts, temp)[-1])
    assert hazard.probability.argmax() == 5


def test_moments_before_a_failure_do_not_become_usual():
    watts, temp, _ = fleet(seed=0)
    temp[7] += 30
    outcome = np.zeros(WORKERS)
    outcome[7] = 1.0
    wary, credulous = predictor(), predictor()
    wary.fit(Example(view=view, outcome=outcome) for view in views(watts, temp))
    credulous.fit(Example(view=view, outcome=outcome * 0) for view in views(watts, temp))
    view = views(watts, temp)[-1]
    assert wary.forecast(view).probability[7] > credulous.forecast(view).probability[7]


def test_a_worker_without_samples_gets_no_forecast():
    watts, temp, _ = fleet(seed=2)
    watts[0], temp[0] = np.nan, np.nan
    alone = views(watts[:1], temp[:1])[-1]
    assert np.isnan(fitted().forecast(alone).probability).all()


def test_a_model_of_other_options_is_refused():
    with pytest.raises(ModelError, match="need method forest of the options, was pca"):
        predictor(method="forest").restore(fitted().parts())
    with pytest.raises(ModelError, match=r"need the \d+ features of the options, was \d+ of other"):
        predictor(spans_s=(2.0,)).restore(fitted().parts())


def test_a_tree_that_points_outside_itself_is_refused():
    learner = fitted(method="forest")
    learner._forest.estimators_[0].tree_.feature[0] = 10_000
    parts = {**learner.parts(), "anomaly.skops": estimator_bytes(learner._forest)}
    with pytest.raises(ModelError, match="need node and feature indices in range"):
        predictor(method="forest").restore(parts)
