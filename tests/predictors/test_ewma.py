import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torchloom_core.testing import view_of
from torchloom_predictors.ewma import EwmaPredictor

SAMPLES = 100


def forecast(values, **options):
    settings = {"metric": "ecc", "half_life_s": 20.0, **options}
    predictor = EwmaPredictor(EwmaPredictor.Options(**settings))
    return predictor.forecast(view_of({"ecc": np.atleast_2d(np.asarray(values, dtype=float))}))


def noisy(workers=1, mean=50.0):
    return mean + np.random.default_rng(7).normal(size=(workers, SAMPLES))


def test_a_jump_of_many_sigmas_is_a_likely_failure_with_a_reason():
    values = noisy(3)
    values[1, -1] = 60.0
    hazard = forecast(values)
    assert hazard.probability[1] > 0.99
    assert (hazard.probability[[0, 2]] < 1e-3).all()
    assert list(hazard.why) == [1]
    assert hazard.why[1].startswith("ecc was 60, ")


def test_the_probability_is_bayes_rule_for_two_gaussians():
    values = np.tile([49.0, 51.0], 50)
    values[-1] = 54.0
    past, age = values[:-1], np.arange(SAMPLES - 1, 0, -1)
    weight = 0.5 ** (age / 20.0)
    mean = np.average(past, weights=weight)
    z = (54.0 - mean) / np.sqrt(np.average((past - mean) ** 2, weights=weight))
    healthy, failing = np.exp(-(z**2) / 2), np.exp(-((z - 6) ** 2) / 2)
    expected = 1e-3 * failing / (1e-3 * failing + (1 - 1e-3) * healthy)
    assert forecast(values).probability[0] == pytest.approx(expected)


def test_a_drop_is_no_sign_of_failure():
    values = noisy()
    values[0, -1] = 10.0
    assert forecast(values).probability[0] < 1e-3


def test_the_first_error_ever_counted_stands_out():
    values = np.zeros(SAMPLES)
    assert forecast(values).probability[0] < 1e-3
    values[-1] = 1.0
    assert forecast(values).probability[0] == pytest.approx(1.0)


def test_changes_below_min_sigma_do_not_matter():
    values = np.zeros(SAMPLES)
    values[-1] = 1.0
    assert forecast(values, min_sigma=1.0).probability[0] < 1e-3


def test_a_metric_that_stays_high_becomes_the_new_mean():
    values = noisy()
    values[0, -60:] += 20.0
    assert forecast(values).probability[0] < 0.1


def test_too_few_samples_or_no_fresh_one_is_no_judgement():
    young, stale, full = noisy(3)
    young[:-5] = np.nan
    stale[-20:] = np.nan
    probability = forecast([young, stale, full]).probability
    assert np.isnan(probability).tolist() == [True, True, False]


def test_the_last_sample_is_judged_though_it_came_some_ticks_ago():
    values = noisy()
    values[0, -5] = 70.0
    values[0, -4:] = np.nan
    assert forecast(values).probability[0] > 0.99


@settings(max_examples=examples(50))
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=2, max_size=20),
    st.floats(min_value=0.1, max_value=50),
)
def test_any_measurements_give_a_probability_or_none(values, sigmas):
    half_life_s = len(values) / 5
    hazard = forecast(values, sigmas=sigmas, min_samples=2, half_life_s=half_life_s)
    probability = hazard.probability
    assert ((probability >= 0) & (probability <= 1) | np.isnan(probability)).all()


def test_days_between_samples_are_as_good_as_seconds():
    day_s = 86_400.0
    values = noisy(3)
    values[1, -1] = 60.0
    values[:, 10:80:7] = np.nan
    predictor = EwmaPredictor(
        EwmaPredictor.Options(metric="ecc", half_life_s=20 * day_s, horizon_s=7 * day_s)
    )
    hazard = predictor.forecast(view_of({"ecc": values}, tick_s=day_s, stale_after_s=3 * day_s))
    assert hazard.probability[1] > 0.99
    assert (hazard.probability[[0, 2]] < 1e-3).all()
