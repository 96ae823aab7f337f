"""What a browser paints is what the dashboard has, whatever was changed in between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.dashboard.frames import painted
from torchloom_core.live.dashboard.heatmap import (
    STATES,
    VALUES,
    Painter,
    Scale,
    bytes_of,
    extremes_of,
    scale_of,
)

rows = arrays(np.uint8, st.integers(0, 40), elements=st.integers(0, 3))
floats = arrays(np.float64, st.integers(1, 50), elements=st.floats(allow_nan=True))


@given(st.lists(st.tuples(rows, st.sampled_from([Scale(0, 1), Scale(0, 2)])), max_size=12))
def test_the_frames_one_after_the_other_give_what_there_is(moments):
    painter, seen, scale = Painter(VALUES), np.zeros(0, np.uint8), None
    for there, wanted in moments:
        frame = painter.frame(there.copy(), wanted)
        if frame:
            channel, scale, seen = painted(frame, seen)
            assert channel == VALUES
            assert len(frame) <= 24 + len(there)
        assert seen.tolist() == there.tolist()
        assert scale == wanted


def test_what_has_not_changed_is_not_sent_and_a_little_change_is_little():
    painter, there = Painter(STATES), np.full(10_000, 3, np.uint8)
    assert len(painter.frame(there.copy())) == 24 + 10_000
    assert painter.frame(there.copy()) == b""
    there[7] = 9
    assert len(painter.frame(there.copy())) == 24 + 1250 + 1


def test_all_of_it_is_sent_again_once_it_was_forgotten():
    painter, there = Painter(STATES), np.zeros(10, np.uint8)
    first = painter.frame(there)
    painter.forget()
    assert painter.frame(there) == first


@given(floats)
def test_numbers_are_painted_on_the_scale_and_nan_differs(values):
    with np.errstate(all="raise", under="ignore", over="ignore", invalid="ignore"):
        scale = scale_of(values, None)
    painted_as = bytes_of(values, scale)
    assert ((painted_as == 0) == np.isnan(values)).all()
    order = np.argsort(values[~np.isnan(values)], kind="stable")
    assert (np.diff(painted_as[~np.isnan(values)][order].astype(int)) >= 0).all()


def test_a_scale_stays_while_the_values_fit_it():
    rng = np.random.default_rng(0)
    scale = scale_of(rng.normal(10.0, 1.0, 5000), None)
    for _ in range(20):
        assert scale_of(rng.normal(10.0, 1.0, 5000), scale) == scale
    assert scale_of(rng.normal(20.0, 1.0, 5000), scale) != scale
    assert (
        scale_of(rng.normal(0.0, 0.1, 5000), scale_of(rng.normal(0.0, 9.0, 5000), None)).high < 1.0
    )


def test_a_small_difference_looks_small():
    values = np.array([0.0718, 0.0721, 0.0757])
    scale = scale_of(values, None)
    assert scale.low < 0.5 * 0.0721
    assert scale.high > 2.0 * 0.0721


def test_one_value_far_out_does_not_make_all_others_alike():
    values = np.append(np.linspace(1.0, 2.0, 999), 1e6)
    scale = scale_of(values, None)
    assert scale.high < 4.0
    painted_as = bytes_of(values, scale)
    assert painted_as[-1] == 255
    assert len(set(painted_as.tolist())) > 90


@pytest.mark.parametrize("values", [[np.nan, np.nan], [5.0, 5.0], [0.0], [np.inf, 1.0], [1e308]])
def test_values_that_are_none_or_all_alike_have_a_scale(values):
    values = np.array(values)
    scale = scale_of(values, None)
    assert scale.low <= scale.high
    assert scale_of(values, scale) == scale
    assert len(bytes_of(values, scale)) == len(values)


@given(arrays(np.float64, st.integers(0, 300), elements=st.floats(allow_nan=True)))
def test_outliers_are_exact_and_sorted_from_the_largest(values):
    update = extremes_of(values)
    assert [values[row] for row, _ in update] == [value for _, value in update]
    finite = sorted(values[np.isfinite(values)], reverse=True)
    most = finite if len(finite) <= 64 else [*finite[:5], *finite[-5:]]
    assert [value for _, value in update] == most
    assert len({row for row, _ in update}) == len(update)
