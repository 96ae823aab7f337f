import numpy as np
import pytest

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.learning import SeasonalProfiles

DAY_S, HOUR_S = 86_400.0, 3600.0
START_NS = 1_700_006_400 * SECOND_NS  # midnight


def wave(hours, period):
    return np.sin(2 * np.pi * hours / period)


def learn(series, *seasons_s, start_hour=0):
    """Return profiles of ``(hours, workers)`` of one metric."""
    start_ns = START_NS + round(start_hour * HOUR_S * SECOND_NS)
    return SeasonalProfiles.learn(series[:, :, None], start_ns, HOUR_S, seasons_s)


def usual_at(profiles, hour):
    return profiles.usual(START_NS + round(hour * HOUR_S * SECOND_NS))[:, 0]


def noise(shape, seed=0, size=0.3):
    return size * np.random.default_rng(seed).normal(size=shape)


def test_each_worker_has_level_profile_and_spread_of_its_own():
    hours = np.arange(20 * 24)
    series = np.column_stack([10 + 5 * wave(hours, 24), 50 - 2 * wave(hours, 24)])
    profiles = learn(series + noise(series.shape), DAY_S)
    assert profiles.level[:2, 0] == pytest.approx([10, 50], abs=0.1)
    assert profiles.spread[:2, 0] == pytest.approx([0.3, 0.3], rel=0.15)
    for hour in (3, 6, 15.5, 600, 606):
        expected = [10 + 5 * wave(hour, 24), 50 - 2 * wave(hour, 24)]
        assert usual_at(profiles, hour)[:2] == pytest.approx(expected, abs=0.3)


def test_the_time_of_the_first_row_gives_the_phase_of_the_day():
    hours = np.arange(20 * 24) + 7.5
    series = (10 + 5 * wave(hours, 24))[:, None]
    profiles = learn(series + noise(series.shape), DAY_S, start_hour=7.5)
    assert usual_at(profiles, 1000 * 24 + 6)[0] == pytest.approx(15, abs=0.3)


def test_two_seasons_are_separated():
    hours = np.arange(42 * 24)
    weekend = np.where(hours // 24 % 7 >= 5, -4.0, 0.0)
    series = (20 + 5 * wave(hours, 24) + weekend)[:, None]
    profiles = learn(series + noise(series.shape), 7 * DAY_S, DAY_S)
    assert profiles.seasons_s == (DAY_S, 7 * DAY_S)
    for day, rest in ((2, 0.0), (5, -4.0), (6, -4.0)):
        hour = (700 + day) * 24 + 6.0
        assert usual_at(profiles, hour)[0] == pytest.approx(25 + rest, abs=0.8)


@pytest.mark.parametrize("season_s", [HOUR_S, 11 * DAY_S])
def test_a_season_too_short_or_seen_too_little_is_left_out(season_s):
    series = 10 + noise((20 * 24, 1))
    assert learn(series, season_s).seasons_s == ()


def test_incidents_do_not_become_usual():
    hours = np.arange(30 * 24)
    series = (10 + 5 * wave(hours, 24))[:, None] + noise((len(hours), 1))
    series[100:110] = 1e6
    series[300:330] = -1e9
    profiles = learn(series, DAY_S)
    assert profiles.spread[0, 0] == pytest.approx(0.3, rel=0.3)
    for hour in (4, 10, 22):
        assert usual_at(profiles, hour)[0] == pytest.approx(10 + 5 * wave(hour, 24), abs=0.5)


def test_a_worker_with_few_samples_gets_the_median_of_the_others():
    hours = np.arange(20 * 24)
    series = np.column_stack([10 + 5 * wave(hours, 24)] * 3) + noise((len(hours), 3))
    series[23:, 2] = np.nan
    usual = usual_at(learn(series, DAY_S), 606)
    assert usual == pytest.approx([15] * 4, abs=0.3)
    assert usual[2] == usual[3] == np.median(usual[:2])


def test_a_metric_without_samples_is_nan():
    series = np.stack([np.full((100, 2), np.nan), 10 + noise((100, 2))], axis=2)
    profiles = SeasonalProfiles.learn(series, START_NS, HOUR_S, (DAY_S,))
    assert np.isnan(profiles.usual(START_NS)).tolist() == [[True, False]] * 3


def test_rounding_of_a_metric_that_never_moves_is_not_many_spreads():
    profiles = learn(np.full((100, 1), 0.1), DAY_S)
    off = profiles.spreads_off(np.array([[0.1 + 1e-16], [0.2]]), [0, -1], START_NS)
    assert abs(off[0, 0]) < 1e-3
    assert off[1, 0] > 1000
