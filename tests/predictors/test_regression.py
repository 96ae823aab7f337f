import numpy as np
import pytest

from torchloom_core.learning import estimator_bytes
from torchloom_core.plugin import ModelError
from torchloom_predictors.regression import Regression

COLUMNS = 6


def rows(count, seed):
    """Return numbers of which some are unknown, the first column's seldom and the last's all."""
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, COLUMNS))
    numbers[random.random(numbers.shape) < np.linspace(0.05, 0.3, COLUMNS)] = np.nan
    numbers[:, -1] = np.nan
    return numbers


@pytest.fixture(scope="module")
def pipeline():
    learned_from = rows(200, seed=0)
    return Regression.fit(learned_from, learned_from[:, 1] > 0, l2=1.0)._pipeline


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_its_log_odds_are_those_of_the_pipeline_to_the_bit(pipeline, count, order):
    numbers = rows(count, seed=1).copy(order=order)
    expected = pipeline.decision_function(numbers)
    assert Regression(pipeline).log_odds(numbers).tobytes() == expected.tobytes()


def test_it_leaves_the_numbers_it_is_given_as_they_were(pipeline):
    numbers = rows(5, seed=1)
    before = numbers.tobytes()
    Regression(pipeline).log_odds(numbers)
    assert numbers.tobytes() == before


def test_a_regression_on_other_columns_is_refused(pipeline):
    parts = {"it.skops": Regression(pipeline).to_bytes()}
    with pytest.raises(ModelError, match=r"it.skops: need a regression on 7 columns, was another"):
        Regression.restore(parts, "it.skops", COLUMNS + 1)


def test_another_estimator_is_refused(pipeline):
    parts = {"it.skops": estimator_bytes(pipeline.steps[-1][1])}
    with pytest.raises(ModelError, match=r"it.skops: need a regression on 6 columns, was another"):
        Regression.restore(parts, "it.skops", COLUMNS)
