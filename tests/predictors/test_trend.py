import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from torchloom_core.testing import view_of
from torchloom_predictors.trend import TrendPredictor, _may_reach

WINDOW = 60


def predictor(**options):
    wanted = {"metric": "temp", "level": 100.0, "window_s": WINDOW, "horizon_s": 60.0}
    return TrendPredictor(TrendPredictor.Options(**{**wanted, **options}))


def forecast(values, **options):
    return predictor(**options).forecast(view_of({"temp": np.atleast_2d(values)}))


def line(last, slope, noise=0.5, seed=3):
    """Return a minute of a line that ends at ``last``, with Gaussian noise."""
    seconds = np.arange(1 - WINDOW, 1)
    return last + slope * seconds + noise * np.random.default_rng(seed).normal(size=WINDOW)


def test_a_rise_that_crosses_the_level_in_time_is_a_likely_failure():
    hazard = forecast([line(80, 0.5), line(80, 0.05), line(80, 0.0)])
    assert hazard.probability[0] > 0.99
    assert (hazard.probability[1:] < 1e-6).all()
    assert "rises 0.5 a second" in hazard.why[0]
    assert "reaches 100 in about 39 s" in hazard.why[0]


def test_a_line_that_ends_at_the_level_at_the_horizon_is_even_odds():
    seconds = np.arange(1 - WINDOW, 1)
    zigzag = np.where(seconds % 2 == 0, 0.5, -0.5)
    values = 70 + 0.5 * seconds + zigzag
    slope, start = np.polyfit(seconds, values, 1)
    values += 100 - (start + slope * 60)
    assert forecast(values).probability[0] == pytest.approx(0.5, abs=1e-6)


def test_the_probability_is_that_of_the_textbooks_prediction_interval():
    values = line(70, 0.45, noise=2.0)
    t = np.arange(1 - WINDOW, 1)
    slope, start = np.polyfit(t, values, 1)
    sigma2 = ((values - start - slope * t) ** 2).sum() / (WINDOW - 2)
    spread = math.sqrt(
        sigma2 * (1 + 1 / WINDOW + (60 - t.mean()) ** 2 / ((t - t.mean()) ** 2).sum())
    )
    expected = 0.5 * math.erfc((100 - start - slope * 60) / spread / math.sqrt(2))
    assert 0.05 < expected < 0.95
    assert forecast(values).probability[0] == pytest.approx(expected)


def test_what_is_over_the_level_has_failed_already():
    hazard = forecast(line(105, 0.0))
    assert hazard.probability[0] == 1.0
    assert hazard.why[0].startswith("temp was 10")


def test_a_fall_is_no_failure():
    assert forecast(line(90, -0.5)).probability[0] == 0.0


def test_a_straight_line_without_noise_is_no_division_by_zero():
    hazard = forecast([line(80, 0.5, noise=0), line(80, 0.1, noise=0), np.full(WINDOW, 80.0)])
    assert hazard.probability.tolist() == [1.0, 0.0, 0.0]


def test_too_few_samples_or_no_fresh_one_is_no_judgement():
    young, stale, holey = line(80, 0.5), line(80, 0.5), line(80, 0.5)
    young[:-5] = np.nan
    stale[-20:] = np.nan
    holey[1:-1:2] = np.nan
    probability = forecast([young, stale, holey]).probability
    assert np.isnan(probability).tolist() == [True, True, False]
    assert probability[2] > 0.99


@settings(max_examples=examples(60), deadline=None)
@given(
    st.floats(min_value=-1, max_value=1),
    st.floats(min_value=0.1, max_value=5),
    st.integers(min_value=0, max_value=99),
)
def test_what_is_not_fitted_was_not_worth_it(slope, noise, seed):
    """The prefilter may only leave out lines that do not rise or end far below the level."""
    values = line(70, slope, noise, seed)
    seconds = np.arange(1 - WINDOW, 1).astype(float)
    if not _may_reach(values[None, :], seconds, 60.0, 100.0)[0]:
        fitted, fitted_slope = predictor()._fit(values, seconds)
        sure = abs(fitted_slope) > 4 * noise / math.sqrt(WINDOW**3 / 12)
        assert fitted < 1e-8 or not sure or fitted_slope < 0


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=60, max_size=60))
def test_any_measurements_give_a_probability_or_none(values):
    probability = forecast(values, min_samples=4).probability
    assert ((probability >= 0) & (probability <= 1) | np.isnan(probability)).all()


def test_days_between_samples_are_as_good_as_seconds():
    day_s = 86_400.0
    values = np.vstack([line(80, 0.5), line(80, 0.05)])
    values[:, 5:50:7] = np.nan
    slow = predictor(window_s=WINDOW * day_s, horizon_s=60 * day_s)
    hazard = slow.forecast(view_of({"temp": values}, tick_s=day_s, stale_after_s=3 * day_s))
    assert hazard.probability[0] > 0.99
    assert hazard.probability[1] < 1e-6
    assert "reaches 100 in about 39" in hazard.why[0]
    assert hazard.why[0].endswith(" d")
