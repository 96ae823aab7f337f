import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from torchloom_core.lab.learning import Scale, step_means

NAN = np.nan
anything = st.floats(allow_nan=True, allow_infinity=True)


def test_the_spread_of_a_gaussian_is_its_standard_deviation():
    rows = np.random.default_rng(0).normal(5.0, 3.0, size=(20_000, 1))
    rows[:2000] = NAN
    scale = Scale.of(rows)
    assert scale.middle == pytest.approx([5.0], abs=0.1)
    assert scale.spread == pytest.approx([3.0], rel=0.03)


def test_a_tenth_of_outliers_hardly_moves_it():
    rows = np.random.default_rng(0).normal(5.0, 3.0, size=(20_000, 1))
    rows[::10] = 1e9
    scale = Scale.of(rows)
    assert scale.middle == pytest.approx([5.0], abs=0.6)
    assert scale.spread == pytest.approx([3.0], rel=0.3)


def test_a_column_that_mostly_rests_has_its_standard_deviation_for_spread():
    rows = np.zeros((1000, 1))
    rows[:50] = 8.0
    assert Scale.of(rows).spread == pytest.approx([rows.std()])


def test_any_change_of_a_column_that_never_moved_is_many_spreads():
    scale = Scale.of(np.full((100, 2), [1000.0, 0.0]))
    off = scale.spreads_off(np.array([[1000.0 + 1e-9, 0.0], [1001.0, 1e-3]]))
    assert (np.abs(off[0]) < 1).all()
    assert (off[1] > 100).all()


@pytest.mark.parametrize("other", [1.0, NAN])
def test_a_column_without_values_stays_nan(other):
    scale = Scale.of(np.array([[NAN, other], [NAN, other]]))
    unknown = np.isnan(scale.spreads_off(np.ones((3, 2))))
    assert unknown.tolist() == [[True, np.isnan(other)]] * 3


@given(arrays(float, (4, 7), elements=anything), st.integers(min_value=1, max_value=9))
def test_the_mean_of_each_step_is_that_of_its_samples(window, steps):
    means = step_means(window, steps)
    assert means.shape == (4, steps)
    step_of = np.arange(7) * steps // 7
    for row, step in np.ndindex(4, steps):
        samples = window[row, step_of == step]
        samples = samples[np.isfinite(samples)]
        with np.errstate(over="ignore"):
            mean = samples.sum() / len(samples) if len(samples) else NAN
        expected = mean if np.isfinite(mean) else NAN
        assert means[row, step] == pytest.approx(expected, nan_ok=True, rel=1e-6, abs=1e291)
