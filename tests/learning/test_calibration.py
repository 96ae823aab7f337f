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
from torchloom_core.learning.task_wording import TOLD


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


def test_what_was_fitted_is_applied_on_the_scale_of_the_logit():
    said = np.array([[0.02, 0.4], [0.9, np.nan]])
    for slope, intercept in ((0.9, -0.2), (1.0, -0.2), (0.9, 0.0)):
        after = Calibration(slope=slope, intercept=intercept).apply(said)
        assert after == pytest.approx(expit(slope * logit(said) + intercept), nan_ok=True)


def test_a_level_is_counted_as_often_as_it_was_said_in_whatever_order():
    random = np.random.default_rng(2)
    said = random.choice([0.1, 0.5, 0.9], 300)
    came = (random.random(300) < said / 2).astype(float)
    order = random.permutation(300)
    one = calibrate(said, came)
    assert calibrate(said[order], came[order]) == one
    assert one.apply(said).mean() == pytest.approx(came.mean(), abs=1e-3)


def test_0_and_1_are_no_more_than_nearly_sure():
    after = Calibration(slope=0.5, intercept=0.0).apply(np.array([0.0, 1e-12, 0.5, 1.0]))
    assert after[0] == after[1] == pytest.approx(1e-9**0.5, rel=1e-3)
    assert after[2] == 0.5
    assert 1.0 - after[3] == pytest.approx(1e-9**0.5, rel=1e-3)


def test_where_nothing_failed_or_all_did_or_nothing_is_known_there_is_nothing_to_fit():
    said = np.full(5, 0.5)
    for came, positives in ((np.zeros(5), 0), (np.ones(5), 5), (np.full(5, np.nan), 0)):
        found = platt.calibrate(said, came, failures=3, prevalence=0.1)
        assert found == Calibration(positives=positives, failures=3)


@pytest.mark.parametrize("positives", [1, 19])
def test_one_moment_of_either_kind_is_enough_to_fit(positives):
    came = (np.arange(20) < positives).astype(float)
    assert not platt.calibrate(came / 2 + 0.25, came, failures=1, prevalence=0.1).is_identity


@pytest.mark.parametrize(
    ("log_slope", "bound"),
    [(3.0, "upper"), (2.998, "upper"), (2.98, ""), (-3.0, "lower"), (-2.998, "lower"), (-2.98, "")],
)
def test_a_slope_within_a_thousandth_of_its_range_is_at_its_bound(log_slope, bound):
    assert Calibration(slope=float(np.exp(log_slope))).bound == bound


@pytest.mark.parametrize(("failures", "count"), [(1, "1 failure"), (2, "2 failures")])
def test_the_text_says_on_how_many_failures_and_what_came_of_it(failures, count):
    found = Calibration(slope=0.5, intercept=-1.25, positives=7, failures=failures)
    assert found.text(TOLD["forecast"]) == (
        f"Platt's on {count}, 7 moments before: slope 0.5, intercept -1.25"
    )


def test_without_a_failure_probabilities_are_left_as_they_are():
    said = np.linspace(0, 1, 50)
    calibration = calibrate(said, np.zeros(50))
    assert calibration.is_identity
    assert np.array_equal(calibration.apply(said), said)
    assert calibration.text(TOLD["forecast"]) == "none: no failure to calibrate on"


def test_one_failure_that_was_asked_about_often_makes_nothing_sure():
    said, came = np.full(2_000, 0.001), np.zeros(2_000)
    said[:144], came[:144] = 0.15, 1.0
    often = calibrate(said, came, failures=1, prevalence=0.01)
    assert often.text(TOLD["forecast"]).startswith(
        "Platt's on 1 failure, 144 moments before: slope "
    )
    assert often.apply(np.array([0.15]))[0] < 0.5
    assert calibrate(said, came, prevalence=0.01).apply(np.array([0.15]))[0] > 0.9


def test_asking_more_often_changes_nothing():
    random = np.random.default_rng(0)
    said = random.random(500)
    came = (random.random(500) < said * 0.2).astype(float)
    once = calibrate(said, came)
    often = calibrate(
        np.repeat(said, 9), np.repeat(came, 9), failures=int(came.sum()), prevalence=came.mean()
    )
    assert often.apply(said) == pytest.approx(once.apply(said), rel=1e-4)


def test_few_failures_are_drawn_to_the_prevalence_of_the_time_before():
    random = np.random.default_rng(0)
    said = random.random(5_000)
    came = (random.random(5_000) < 0.2 * said).astype(float)
    means = [
        calibrate(said, came, failures=failures, prevalence=0.01).apply(said).mean()
        for failures in (1, 10, 100)
    ]
    assert 0.01 < means[0] < means[1] < means[2] < came.mean()


def test_where_nothing_failed_before_the_prevalence_is_that_of_the_calibration():
    random = np.random.default_rng(0)
    said = random.random(500)
    came = (random.random(500) < 0.2 * said).astype(float)
    assert calibrate(said, came, prevalence=0.0) == calibrate(said, came)


def test_moments_of_which_something_is_not_known_are_left_out_and_nan_stays():
    random = np.random.default_rng(0)
    said = random.random(500)
    came = (random.random(500) < said).astype(float)
    more = calibrate(np.concatenate([said, [np.nan, 0.5]]), np.concatenate([came, [1.0, np.nan]]))
    assert more == calibrate(said, came)
    assert np.isnan(more.apply(np.array([np.nan]))).all()


def test_a_usual_slope_raises_no_doubt():
    random = np.random.default_rng(0)
    said = random.random(500)
    calibration = calibrate(said, (random.random(500) < said).astype(float))
    assert (calibration.bound, calibration.flags, calibration.remarks) == ("", (), ())
    assert "bound" not in calibration.text(TOLD["forecast"])
    assert Calibration().bound == ""


@pytest.mark.parametrize(
    ("tells", "bound", "slope", "means"),
    [
        (lambda came, random: random.random(len(came)), "lower", "0.0498", "nearly the same"),
        (lambda came, random: 1 - 0.5 * came, "lower", "0.0498", "nearly the same"),
        (lambda came, random: 0.3 + 0.1 * came, "upper", "20.1", "further apart"),
    ],
    ids=["says nothing", "says the opposite", "says hardly enough"],
)
def test_a_slope_that_ran_into_its_bound_is_told_in_plain_words(tells, bound, slope, means):
    random = np.random.default_rng(0)
    came = (random.random(2_000) < 0.2).astype(float)
    calibration = calibrate(tells(came, random), came)
    assert calibration.bound == bound
    assert f"slope {slope} (its {bound} bound), " in calibration.text(TOLD["forecast"])
    assert calibration.flags == (f"calibration_at_bound: {bound}",)
    (remark,) = calibration.remarks
    assert means in remark
    assert "policy" in remark


probabilities = arrays(np.float64, 60, elements=st.floats(0, 1))


@settings(deadline=None, max_examples=30)
@given(probabilities, arrays(np.bool_, 60))
def test_who_is_likelier_to_fail_stays_likelier_whatever_came(said, came):
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
def test_who_is_surer_of_everything_once_it_has_learned_again_is_taken_at_its_former_word(
    said, surer, higher
):
    former = Calibration(slope=0.7, intercept=-0.4, positives=3, failures=2)
    said = np.tile(said, 100)
    again = expit(surer * logit(said) + higher)
    found = former.carried_over(said, again)
    assert (found.slope, found.intercept) == (former.slope, former.intercept)
    if np.ptp(said) > 0.01:
        assert found.apply(again) == pytest.approx(former.apply(said), rel=0.05)
    else:
        assert found.apply(again).mean() == pytest.approx(former.apply(said).mean(), rel=0.1)


def test_few_moments_carry_little_over():
    said = np.array([0.1, 0.3])
    once, often = (
        Calibration().carried_over(np.tile(said, n), expit(2.0 * logit(np.tile(said, n)) + 1.0))
        for n in (1, 1000)
    )
    assert once.stretch == pytest.approx(1.0 - 0.5 * 2 / 22)
    assert once.shift == pytest.approx(-0.5 * 2 / 22)
    assert (often.stretch, often.shift) == (
        pytest.approx(0.5, abs=0.01),
        pytest.approx(-0.5, abs=0.01),
    )


@given(SAID, SAID)
def test_whatever_it_says_once_it_has_learned_again_the_order_is_kept(said, again):
    found = Calibration().carried_over(said, again)
    levels = np.sort(again)
    assert (np.diff(found.apply(levels)) >= 0.0).all()
    assert 1 / 21 < found.stretch < 21


def test_however_far_apart_it_says_it_now_it_is_stretched_no_more_than_a_slope_may_be():
    near, far = np.tile([0.49, 0.51], 10_000), np.tile([0.001, 0.999], 10_000)
    assert Calibration().carried_over(far, near).stretch == pytest.approx(np.exp(3.0), rel=0.01)
    assert Calibration().carried_over(near, far).stretch == pytest.approx(np.exp(-3.0), rel=0.03)


def test_likely_ones_weigh_more_than_the_many_that_are_not():
    random = np.random.default_rng(0)
    said = np.append(random.uniform(0.001, 0.002, 500), random.uniform(0.2, 0.6, 20))
    again = np.append(random.uniform(0.004, 0.005, 500), random.uniform(0.1, 0.3, 20))
    found = Calibration().carried_over(said, again)
    likely = slice(500, None)
    assert np.sort(found.apply(again)[likely]) == pytest.approx(np.sort(said[likely]), rel=0.35)


def test_who_said_nothing_of_the_same_moments_is_left_as_it_is():
    former = Calibration(slope=2.0, intercept=1.0)
    nobody = np.array([np.nan, 0.5])
    assert former.carried_over(nobody, nobody[::-1]) == former
    assert "learned again" not in former.text(TOLD["forecast"])
    same = former.carried_over(np.array([0.5, 0.5]), np.array([0.25, 0.25]))
    assert (same.stretch, same.shift) == (1.0, pytest.approx(np.log(3) * 2 / 22))


@given(SAID, st.floats(0.01, 0.99))
def test_who_says_the_same_of_all_is_not_taken_apart_by_rounding(said, always):
    same = np.full(len(said), always)
    assert Calibration().carried_over(said, same).stretch == 1.0
    assert Calibration().carried_over(same, said).stretch == 1.0


def test_what_carries_it_over_is_told():
    found = Calibration(slope=2.0, intercept=1.0, positives=4, failures=2, stretch=1.5, shift=-0.25)
    assert found.text(TOLD["forecast"]).endswith(
        "slope 2, intercept 1; of its log odds since it learned again x 1.5 -0.25"
    )
    assert Calibration(stretch=1.0, shift=0.5).apply(np.array([0.5]))[0] > 0.5


def test_what_carries_it_over_is_told_also_where_there_was_no_failure_to_calibrate_on():
    said = np.tile([0.1, 0.2, 0.3], 1000)
    found = Calibration().carried_over(said, said / 10.0)
    assert found.apply(np.array([0.02]))[0] == pytest.approx(0.2, abs=0.02)
    text = found.text(TOLD["forecast"])
    assert text.startswith("none: no failure to calibrate on; of its log odds since it learned")
