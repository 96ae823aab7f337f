from typing import ClassVar

import numpy as np
import pytest

from tests.predictors import warming_fleet
from tests.predictors.warming_fleet import warming
from torchloom_core.lab.learning import estimator_bytes
from torchloom_core.plugin import Example, ModelError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.forest import ForestPredictor

pytestmark = pytest.mark.slow


class TestContract(LearnerContract):
    predictor_class = ForestPredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0, 20.0], "trees": 10}


def predictor(**options):
    return warming_fleet.predictor(ForestPredictor, **{"trees": 50, **options})


@pytest.fixture(scope="module")
def fitted():
    learner = predictor()
    learner.fit(warming())
    return learner


def test_where_all_trees_are_sure_it_is_certain_and_no_number_is_lost():
    calm, hot = np.full((20, 10), 60.0), np.full((20, 10), 90.0)
    ill = np.arange(20) < 5
    metrics = {"temp": np.where(ill[:, None], hot, calm), "noise": np.zeros((20, 10))}
    learner = predictor(min_leaf_rows=1)
    learner.fit([Example(view=view_of(metrics), outcome=ill.astype(float))] * 3)
    probability = learner.forecast(view_of(metrics)).probability
    assert np.isfinite(probability).all()
    assert probability[~ill].max() == 0.0
    assert probability[ill].min() == 1.0


def test_the_odds_are_those_of_scikit_learn_to_the_bit(fitted):
    rows = np.random.default_rng(0).normal(60.0, 30.0, (50, len(fitted.columns)))
    rows[::7, 0] = np.nan
    wanted = fitted._trees.predict_proba(rows)
    with np.errstate(divide="ignore"):
        wanted = np.log(wanted[:, 1]) - np.log(wanted[:, 0])
    assert np.array_equal(fitted.log_odds(fitted._trees, rows), wanted)


@pytest.mark.parametrize(
    ("field", "value"), [("children_left", 10_000), ("feature", 10_000), ("feature", -(2**30))]
)
def test_trees_that_point_outside_themselves_are_refused(fitted, field, value):
    spoilt = predictor()
    spoilt.restore(fitted.parts())
    getattr(spoilt._trees.estimators_[0].tree_, field)[0] = value
    with pytest.raises(ModelError, match="need node and feature indices in range"):
        predictor().restore({**fitted.parts(), "forest.skops": estimator_bytes(spoilt._trees)})
