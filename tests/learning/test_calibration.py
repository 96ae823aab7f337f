"""Calibrated probabilities come true as often as they say, and keep their order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.special import expit, logit

from torchloom_core.lab.learning import calibration as platt
from torchloom_core.lab.learning.calibration import Calibration
from torchloom_core.lab.learning.forecast_score import WORDING


def calibrate(predicted, actual, **more):
    """Calibrate where every positive moment is a failure of its own, as in the time before."""
    known = ~np.isnan(predicted) & ~np.isnan(actual)
    counts = {"failures": int(np.nansum(actual[known])), "prevalence": actual[known].mean(), **more}
    return platt.calibrate(predicted, actual, **counts)


def test_what_is_too_sure_of_itself_is_put_right():
    random = np.random.default_rng(0)
    truth = random.uniform(0.01, 0.4, 20_000)
    actual = (random.random(20_000) < truth).astype(float)
    predicted = 1 / (1 + ((1 - truth) / truth) ** 2 * np.exp(-1))
    calibration = calibrate(predicted, actual)
    assert np.abs(calibration.apply(predicted) - truth).max() < 0.03
    assert calibration.slope == pytest.approx(0.5, abs=0.03)
    assert calibration.apply(predicted).mean() == pytest.approx(actual.mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("failures", "prevalence"), [(1, 0.01), (1, 0.4), (7, 0.02), (40, 0.2), (40, 0.0)]
)
def test_the_likelihood_is_that_of_the_failures_and_two_more_at_the_prevalence(
    failures, prevalence
):
    random = np.random.default_rng(1)
    predicted = random.choice([0.02, 0.1, 0.3, 0.6], (100, 3))
    actual = (random.random((100, 3)) < 0.7 * predicted).astype(float)
    found = platt.calibrate(predicted, actual, failures=failures, prevalence=prevalence)
    share = prevalence or actual.mean()
    weight, more = failures / actual.sum(), 2.0 / actual.size
    failed = (weight * actual + more).ravel()
    healthy = (weight * (1 - actual) + more * (1 - share) / share).ravel()

    def loss(parameters):
        p = expit(np.exp(parameters[0]) * logit(predicted.ravel()) + parameters[1])
        return -(failed @ np.log(p) + healthy @ np.log1p(-p))

    exact = {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000}
    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options=exact)
    assert found.slope == pytest.approx(np.exp(best.x[0]), rel=1e-3)
    assert found.intercept == pytest.approx(best.x[1], rel=1e-3, abs=1e-3)
    assert (found.positives, found.failures) == (int(actual.sum()), failures)


def test_outcomes_that_are_all_equal_or_unknown_give_the_identity():
    predicted = np.full(5, 0.5)
    for actual, positives in ((np.zeros(5), 0), (np.ones(5), 5), (np.full(5, np.nan), 0)):
        found = platt.calibrate(predicted, actual, failures=3, prevalence=0.1)
        assert found == Calibration(positives=positives, failures=3)


def test_without_a_failure_probabilities_are_left_as_they_are():
    predicted = np.linspace(0, 1, 50)
    calibration = calibrate(predicted, np.zeros(50))
    assert calibration.is_identity
    assert np.array_equal(calibration.apply(predicted), predicted)
    assert calibration.text(WORDING["forecast"]) == "none: no failure to calibrate on"


def test_one_failure_with_many_moments_leaves_probabilities_moderate():
    predicted, actual = np.full(2_000, 0.001), np.zeros(2_000)
    predicted[:144], actual[:144] = 0.15, 1.0
    often = calibrate(predicted, actual, failures=1, prevalence=0.01)
    assert often.text(WORDING["forecast"]).startswith(
        "Platt scaling, 1 failure, 144 moments before: slope "
    )
    assert often.apply(np.array([0.15]))[0] < 0.5
    assert calibrate(predicted, actual, prevalence=0.01).apply(np.array([0.15]))[0] > 0.9


def test_moments_with_unknown_values_are_left_out_and_nan_stays():
    random = np.random.default_rng(0)
    predicted = random.random(500)
    actual = (random.random(500) < predicted).astype(float)
    more = calibrate(
        np.concatenate([predicted, [np.nan, 0.5]]), np.concatenate([actual, [1.0, np.nan]])
    )
    assert more == calibrate(predicted, actual)
    assert np.isnan(more.apply(np.array([np.nan]))).all()


def test_a_usual_slope_is_not_flagged():
    random = np.random.default_rng(0)
    predicted = random.random(500)
    calibration = calibrate(predicted, (random.random(500) < predicted).astype(float))
    assert (calibration.bound, calibration.flags, calibration.limits) == ("", (), ())
    assert "bound" not in calibration.text(WORDING["forecast"])
    assert Calibration().bound == ""


@pytest.mark.parametrize(
    ("predict", "bound", "slope", "means"),
    [
        (lambda actual, random: random.random(len(actual)), "lower", "0.0498", "nearly the same"),
        (lambda actual, random: 1 - 0.5 * actual, "lower", "0.0498", "nearly the same"),
        (lambda actual, random: 0.3 + 0.1 * actual, "upper", "20.1", "further apart"),
    ],
    ids=["uninformative", "reversed", "too narrow"],
)
def test_a_slope_at_its_bound_is_flagged_and_explained(predict, bound, slope, means):
    random = np.random.default_rng(0)
    actual = (random.random(2_000) < 0.2).astype(float)
    calibration = calibrate(predict(actual, random), actual)
    assert calibration.bound == bound
    assert f"slope {slope} (its {bound} bound), " in calibration.text(WORDING["forecast"])
    assert calibration.flags == (f"calibration_at_bound: {bound}",)
    (limit,) = calibration.limits
    assert means in limit
    assert "prices" in limit


probabilities = arrays(np.float64, 60, elements=st.floats(0, 1))


@settings(deadline=None, max_examples=30)
@given(probabilities, arrays(np.bool_, 60))
def test_calibration_preserves_the_ranking(predicted, actual):
    calibration = calibrate(predicted, actual.astype(float))
    assert calibration.slope > 0
    after = calibration.apply(np.sort(predicted))
    assert np.all(np.diff(after) >= 0)
    assert np.all((after >= 0) & (after <= 1))


SAID = arrays(np.float64, 40, elements=st.floats(0.01, 0.99))


@given(SAID, st.floats(0.3, 3.0), st.floats(-3.0, 3.0))
def test_a_more_confident_refit_is_mapped_to_the_first_fit(predicted, surer, higher):
    former = Calibration(slope=0.7, intercept=-0.4, positives=3, failures=2)
    predicted = np.tile(predicted, 100)
    again = expit(surer * logit(predicted) + higher)
    found = former.carried_over(predicted, again)
    assert (found.slope, found.intercept) == (former.slope, former.intercept)
    if np.ptp(predicted) > 0.01:
        assert found.apply(again) == pytest.approx(former.apply(predicted), rel=0.05)
    else:
        assert found.apply(again).mean() == pytest.approx(former.apply(predicted).mean(), rel=0.1)


@given(SAID, SAID)
def test_the_ranking_of_a_refit_is_preserved(predicted, again):
    found = Calibration().carried_over(predicted, again)
    levels = np.sort(again)
    assert (np.diff(found.apply(levels)) >= 0.0).all()
    assert 1 / 21 < found.stretch < 21
