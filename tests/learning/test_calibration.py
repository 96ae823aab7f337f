"""Calibrated probabilities come true as often as they say, and keep their order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.special import expit, logit

from torchloom_core.learning import calibration as platt
from torchloom_core.learning.calibration import Calibration
from torchloom_core.learning.task_wording import WORDING


def calibrate(said, came, **more):
    """Calibrate where every positive moment is a failure of its own, as in the time before."""
    known = ~np.isnan(said) & ~np.isnan(came)
    told = {"failures": int(np.nansum(came[known])), "prevalence": came[known].mean(), **more}
    return platt.calibrate(said, came, **told)


def test_what_is_too_sure_of_itself_is_put_right():
    random = np.random.default_rng(0)
    truth = random.uniform(0.01, 0.4, 20_000)
    came = (random.random(20_000) < truth).astype(float)
    said = 1 / (1 + ((1 - truth) / truth) ** 2 * np.exp(-1))
    calibration = calibrate(said, came)
    assert np.abs(calibration.apply(said) - truth).max() < 0.03
    assert calibration.slope == pytest.approx(0.5, abs=0.03)
    assert calibration.apply(said).mean() == pytest.approx(came.mean(), abs=1e-4)


@pytest.mark.parametrize(
    ("failures", "prevalence"), [(1, 0.01), (1, 0.4), (7, 0.02), (40, 0.2), (40, 0.0)]
)
def test_the_likelihood_is_that_of_the_failures_and_two_more_at_the_prevalence(
    failures, prevalence
):
    random = np.random.default_rng(1)
    said = random.choice([0.02, 0.1, 0.3, 0.6], (100, 3))
    came = (random.random((100, 3)) < 0.7 * said).astype(float)
    found = platt.calibrate(said, came, failures=failures, prevalence=prevalence)
    share = prevalence or came.mean()
    weight, more = failures / came.sum(), 2.0 / came.size
    failed = (weight * came + more).ravel()
    healthy = (weight * (1 - came) + more * (1 - share) / share).ravel()

    def loss(parameters):
        p = expit(np.exp(parameters[0]) * logit(said.ravel()) + parameters[1])
        return -(failed @ np.log(p) + healthy @ np.log1p(-p))

    exact = {"xatol": 1e-7, "fatol": 1e-10, "maxiter": 4000}
    best = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options=exact)
    assert found.slope == pytest.approx(np.exp(best.x[0]), rel=1e-3)
    assert found.intercept == pytest.approx(best.x[1], rel=1e-3, abs=1e-3)
    assert (found.positives, found.failures) == (int(came.sum()), failures)


def test_outcomes_that_are_all_equal_or_unknown_give_the_identity():
    said = np.full(5, 0.5)
    for came, positives in ((np.zeros(5), 0), (np.ones(5), 5), (np.full(5, np.nan), 0)):
        found = platt.calibrate(said, came, failures=3, prevalence=0.1)
        assert found == Calibration(positives=positives, failures=3)


def test_without_a_failure_probabilities_are_left_as_they_are():
    said = np.linspace(0, 1, 50)
    calibration = calibrate(said, np.zeros(50))
    assert calibration.is_identity
    assert np.array_equal(calibration.apply(said), said)
    assert calibration.text(WORDING["forecast"]) == "none: no failure to calibrate on"


def test_one_failure_with_many_moments_leaves_probabilities_moderate():
    said, came = np.full(2_000, 0.001), np.zeros(2_000)
    said[:144], came[:144] = 0.15, 1.0
    often = calibrate(said, came, failures=1, prevalence=0.01)
    assert often.text(WORDING["forecast"]).startswith(
        "Platt scaling, 1 failure, 144 moments before: slope "
    )
    assert often.apply(np.array([0.15]))[0] < 0.5
    assert calibrate(said, came, prevalence=0.01).apply(np.array([0.15]))[0] > 0.9


def test_more_moments_per_failure_change_nothing():
    random = np.random.default_rng(0)
    said = random.random(500)
    came = (random.random(500) < said * 0.2).astype(float)
    once = calibrate(said, came)
    often = calibrate(
        np.repeat(said, 9), np.repeat(came, 9), failures=int(came.sum()), prevalence=came.mean()
    )
    assert often.apply(said) == pytest.approx(once.apply(said), rel=1e-4)


def test_moments_with_unknown_values_are_left_out_and_nan_stays():
    random = np.random.default_rng(0)
    said = random.random(500)
    came = (random.random(500) < said).astype(float)
    more = calibrate(np.concatenate([said, [np.nan, 0.5]]), np.concatenate([came, [1.0, np.nan]]))
    assert more == calibrate(said, came)
    assert np.isnan(more.apply(np.array([np.nan]))).all()


def test_a_usual_slope_is_not_flagged():
    random = np.random.default_rng(0)
    said = random.random(500)
    calibration = calibrate(said, (random.random(500) < said).astype(float))
    assert (calibration.bound, calibration.flags, calibration.limits) == ("", (), ())
    assert "bound" not in calibration.text(WORDING["forecast"])
    assert Calibration().bound == ""


@pytest.mark.parametrize(
    ("tells", "bound", "slope", "means"),
    [
        (lambda came, random: random.random(len(came)), "lower", "0.0498", "nearly the same"),
        (lambda came, random: 1 - 0.5 * came, "lower", "0.0498", "nearly the same"),
        (lambda came, random: 0.3 + 0.1 * came, "upper", "20.1", "further apart"),
    ],
    ids=["uninformative", "reversed", "too narrow"],
)
def test_a_slope_at_its_bound_is_flagged_and_explained(tells, bound, slope, means):
    random = np.random.default_rng(0)
    came = (random.random(2_000) < 0.2).astype(float)
    calibration = calibrate(tells(came, random), came)
    assert calibration.bound == bound
    assert f"slope {slope} (its {bound} bound), " in calibration.text(WORDING["forecast"])
    assert calibration.flags == (f"calibration_at_bound: {bound}",)
    (limit,) = calibration.limits
    assert means in limit
    assert "prices" in limit


probabilities = arrays(np.float64, 60, elements=st.floats(0, 1))


@settings(deadline=None, max_examples=30)
@given(probabilities, arrays(np.bool_, 60))
def test_calibration_preserves_the_ranking(said, came):
    calibration = calibrate(said, came.astype(float))
    assert calibration.slope > 0
    after = calibration.apply(np.sort(said))
    assert np.all(np.diff(after) >= 0)
    assert np.all((after >= 0) & (after <= 1))


def test_nothing_fitted_changes_no_bit():
    said = np.array([0.0, 1e-12, 0.3, 1.0])
    assert np.array_equal(Calibration().apply(said), said)


SAID = arrays(np.float64, 40, elements=st.floats(0.01, 0.99))


@given(SAID, st.floats(0.3, 3.0), st.floats(-3.0, 3.0))
def test_a_more_confident_refit_is_mapped_to_the_first_fit(said, surer, higher):
    former = Calibration(slope=0.7, intercept=-0.4, positives=3, failures=2)
    said = np.tile(said, 100)
    again = expit(surer * logit(said) + higher)
    found = former.carried_over(said, again)
    assert (found.slope, found.intercept) == (former.slope, former.intercept)
    if np.ptp(said) > 0.01:
        assert found.apply(again) == pytest.approx(former.apply(said), rel=0.05)
    else:
        assert found.apply(again).mean() == pytest.approx(former.apply(said).mean(), rel=0.1)


@given(SAID, SAID)
def test_the_ranking_of_a_refit_is_preserved(said, again):
    found = Calibration().carried_over(said, again)
    levels = np.sort(again)
    assert (np.diff(found.apply(levels)) >= 0.0).all()
    assert 1 / 21 < found.stretch < 21
