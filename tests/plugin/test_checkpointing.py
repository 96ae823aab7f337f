"""The formulas against the published optima and a Monte Carlo of the same process."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import lambertw

from torchloom_core.plugin import daly_s, ettr, expected_unsaved_s, young_s


def exact_interval_s(save_s, mtbf_s):
    """Return the work between checkpoints with the best share of useful time."""
    return mtbf_s * (1.0 + lambertw(-math.exp(-save_s / mtbf_s - 1.0)).real)


@pytest.mark.parametrize(
    ("mtbf_s", "save_s", "restart_s", "detect_s", "young", "daly", "exact", "published"),
    [
        (11135, 30, 60, 60, 817, 797, 797, 0.9184),
        (6480, 60, 300, 0, 882, 842, 842, 0.8307),
        (828, 60, 180, 120, 315, 276, 277, 0.4680),
    ],
)
def test_intervals_and_ettr_match_the_published_values(
    mtbf_s, save_s, restart_s, detect_s, young, daly, exact, published
):
    job = {"save_s": save_s, "mtbf_s": mtbf_s}
    assert round(young_s(**job)) == young
    assert round(daly_s(**job)) == daly
    assert round(exact_interval_s(**job)) == exact
    share = ettr(daly_s(**job), **job, restart_s=restart_s, detect_s=detect_s)
    assert share == pytest.approx(published, abs=6e-5)


def test_youngs_interval_is_a_sixth_too_long_and_hardly_costs_at_a_tenth():
    job = {"save_s": 100.0, "mtbf_s": 1000.0}
    young, best = young_s(**job), exact_interval_s(**job)
    cost = ettr(best, **job, restart_s=100.0) - ettr(young, **job, restart_s=100.0)
    assert young / best == pytest.approx(1.17, abs=0.01)
    assert cost == pytest.approx(0.0026, abs=1e-4)


mtbfs = st.floats(60.0, 1e7)
shares = st.floats(1e-4, 0.5)


@given(mtbfs, shares, st.floats(0.2, 5.0))
def test_no_interval_is_better_than_the_exact_one_and_dalys_is_as_good_on_the_plateau(
    mtbf_s, save_share, times
):
    job = {"save_s": save_share * mtbf_s, "mtbf_s": mtbf_s}
    exact = exact_interval_s(**job)
    best = ettr(exact, **job)
    assert ettr(times * exact, **job) <= best + 1e-12
    assert ettr(daly_s(**job), **job) >= best - 2e-3
    assert 0 < best < 1


def test_a_save_longer_than_the_mtbf_gives_zero_ettr():
    assert daly_s(save_s=100.0, mtbf_s=40.0) == 40.0
    assert ettr(1e9, save_s=1.0, mtbf_s=1.0) == 0.0
    assert ettr(0.0, save_s=1.0, mtbf_s=100.0) == 0.0


@given(st.floats(0, 1000), st.floats(1.0, 1000), st.floats(1.0, 1e5))
def test_the_expected_loss_is_the_mean_over_the_horizon(age_s, interval_s, horizon_s):
    expected = expected_unsaved_s(age_s, interval_s, horizon_s)
    if age_s > 2 * interval_s:
        assert expected == age_s + horizon_s / 2
        return
    age_s = min(age_s, interval_s)  # a late checkpoint comes now
    steps = 4000
    times = (age_s + (k + 0.5) * horizon_s / steps for k in range(steps))
    mean = math.fsum(t % interval_s for t in times) / steps
    assert expected == pytest.approx(mean, abs=interval_s * 0.02 + 2 * horizon_s / steps)


def test_a_checkpoint_in_progress_still_bounds_the_unsaved_work():
    week_s = 7 * 86_400.0
    assert expected_unsaved_s(3660.0, 3600.0, week_s) == pytest.approx(1800.0, rel=1e-3)
    assert expected_unsaved_s(7260.0, 3600.0, week_s) == 7260.0 + week_s / 2
