import numpy as np
import pytest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchloom_core.lab.learning import arrays_bytes
from torchloom_core.plugin import ModelError
from torchloom_predictors.regression import Regression

COLUMNS = 6
L2 = 2.0


def rows(count, seed):
    """Return numbers of which some are unknown, and of which the last two columns tell nothing."""
    random = np.random.default_rng(seed)
    numbers = random.normal(size=(count, COLUMNS))
    numbers[random.random(numbers.shape) < np.linspace(0.05, 0.3, COLUMNS)] = np.nan
    numbers[:, 0], numbers[:, -2], numbers[:, -1] = random.normal(size=count), 1e9, np.nan
    return numbers


LEARNED_FROM = rows(200, seed=0)
FAILED = LEARNED_FROM[:, 1] > 0


@pytest.fixture(scope="module")
def regression():
    return Regression.fit(LEARNED_FROM, FAILED, l2=L2)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_its_log_odds_are_those_of_scikit_learns_pipeline(regression, count, order):
    pipeline = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
        StandardScaler(),
        LogisticRegression(C=1 / L2, max_iter=1000),
    )
    numbers = rows(count, seed=1).copy(order=order)
    expected = pipeline.fit(LEARNED_FROM, FAILED).decision_function(numbers)
    np.testing.assert_allclose(regression.log_odds(numbers), expected, rtol=1e-9)


def test_a_regression_on_other_columns_is_refused(regression):
    parts = {"it.safetensors": regression.to_bytes()}
    with pytest.raises(ModelError, match=r"it.safetensors: need median of shape 7, was \(6,\)"):
        Regression.restore(parts, "it.safetensors", COLUMNS + 1)


def test_a_regression_that_flags_more_than_it_weighs_is_refused(regression):
    arrays = {**regression._asdict(), "flagged": np.ones(COLUMNS)}
    parts = {"it.safetensors": arrays_bytes(arrays)}
    with pytest.raises(ModelError, match=r"it.safetensors: need mean of shape 12, was \(10,\)"):
        Regression.restore(parts, "it.safetensors", COLUMNS)
