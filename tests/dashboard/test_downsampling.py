"""A series keeps its spikes, however coarse the resolution."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.live.dashboard.downsampling import POINTS, SPANS_S, Downsampled


@given(st.integers(0, 200_000 - 1))
def test_a_spike_of_one_second_is_in_every_resolution(spike):
    series = Downsampled()
    begin = max(0, spike - 300)
    for second in range(begin, min(spike + 300, 200_000)):
        value = 100.0 if second == spike else 1.0
        series.add(float(second), value, 1.0, value)
    for span_s in SPANS_S:
        resolution = next(
            resolution for resolution in series._resolutions if resolution.span_s == span_s
        )
        points = resolution.points()
        held = points[(points[:, 0] <= spike) & (spike < points[:, 0] + span_s)]
        assert held[:, 3].tolist() == [100.0]


def test_the_finest_resolution_that_has_all_of_it_is_used():
    series = Downsampled()
    for second in range(20_000):
        series.add(float(second), 1.0, 2.0, 3.0)
    assert np.diff(series.since(19_500.0)[:, 0]).tolist() == [1.0] * 499
    assert set(np.diff(series.since(12_000.0)[:, 0]).tolist()) == {10.0}
    assert set(np.diff(series.since(0.0)[:, 0]).tolist()) == {60.0}
    assert len(series.since(30_000.0)) == 0


def test_points_are_in_order_once_the_oldest_are_forgotten():
    series = Downsampled()
    for second in range(POINTS * 2 + 7):
        series.add(float(second), second, second, second)
    times = series._resolutions[0].points()[:, 0]
    assert times.tolist() == [float(s) for s in range(POINTS + 7, POINTS * 2 + 7)]


def test_a_series_that_has_just_begun_is_drawn_at_its_finest_resolution():
    series = Downsampled()
    for second in range(5):
        series.add(1000.0 + second, second, second, second)
    assert len(series.since(0.0)) == 5


def test_a_clock_that_goes_back_loses_nothing_and_makes_no_new_point():
    series = Downsampled()
    series.add(100.0, 1.0, 1.0, 1.0)
    series.add(90.0, -5.0, 2.0, 9.0)
    assert series.since(0.0).tolist() == [[100.0, -5.0, 2.0, 9.0]]
