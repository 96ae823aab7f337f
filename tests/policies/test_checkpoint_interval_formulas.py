"""The formulas against the published optima and a Monte Carlo of the same process."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.checkpointing import (
    daly_s,
    ettr,
    exact_interval_s,
    expected_unsaved_s,
    young_s,
)

ROWS = [
    # M, C, R, D, tau: Young, Daly, exact; ETTR at Daly's: exact, Monte Carlo
    (11135.0, 30.0, 60.0, 60.0, 817, 797, 797, 0.9184, 0.9187),
    (6480.0, 60.0, 300.0, 0.0, 882, 842, 842, 0.8307, 0.8308),
    (828.0, 60.0, 180.0, 120.0, 315, 276, 277, 0.4680, 0.4687),
]


@pytest.mark.parametrize("row", ROWS)
def test_the_optima_and_what_they_leave_are_those_that_were_published(row):
    mtbf_s, save_s, restart_s, detect_s, young, daly, exact, share, monte_carlo = row
    assert round(young_s(save_s, mtbf_s)) == young
    assert round(daly_s(save_s, mtbf_s)) == daly
    assert round(exact_interval_s(save_s, mtbf_s)) == exact
    times = {"save_s": save_s, "mtbf_s": mtbf_s, "restart_s": restart_s, "detect_s": detect_s}
    assert ettr(daly_s(save_s, mtbf_s), **times) == pytest.approx(share, abs=6e-5)
    assert share == pytest.approx(monte_carlo, abs=1e-3)


mtbfs = st.floats(60.0, 1e7)
shares = st.floats(1e-4, 0.5)


@given(mtbfs, shares, st.floats(0.2, 5.0))
def test_no_interval_is_better_than_the_exact_one_and_dalys_is_as_good_on_the_plateau(
    mtbf_s, save_share, times
):
    save_s = save_share * mtbf_s
    exact = exact_interval_s(save_s, mtbf_s)
    best = ettr(exact, save_s=save_s, mtbf_s=mtbf_s)
    assert ettr(times * exact, save_s=save_s, mtbf_s=mtbf_s) <= best + 1e-12
    assert ettr(daly_s(save_s, mtbf_s), save_s=save_s, mtbf_s=mtbf_s) >= best - 2e-3
    assert 0 < best < 1


def test_where_a_save_takes_longer_than_the_run_lives_nothing_is_left_and_nothing_breaks():
    assert daly_s(100.0, 40.0) == 40.0
    assert ettr(1e9, save_s=1.0, mtbf_s=1.0) == 0.0
    assert ettr(0.0, save_s=1.0, mtbf_s=100.0) == 0.0


@given(st.floats(0, 1000), st.floats(1.0, 1000), st.floats(1.0, 1e5))
def test_what_a_failure_would_lose_is_the_mean_over_the_horizon(age_s, interval_s, horizon_s):
    expected = expected_unsaved_s(age_s, interval_s, horizon_s)
    if age_s > interval_s:
        assert expected == age_s + horizon_s / 2
        return
    steps = 4000
    times = (age_s + (k + 0.5) * horizon_s / steps for k in range(steps))
    mean = math.fsum(t % interval_s for t in times) / steps
    assert expected == pytest.approx(mean, abs=interval_s * 0.02 + 2 * horizon_s / steps)
