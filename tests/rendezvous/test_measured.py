"""Slow workers and costly layers are told apart by layers that several workers have measured."""

from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.live.rendezvous.measured import speeds, updated


def test_a_slow_worker_is_known_by_the_peer_with_the_same_layers():
    layer_s, slowness = speeds({"a0": (1, 2, 0), "b0": (3, 6, 0), "a1": (0, 0, 5)}, 3)
    assert layer_s == pytest.approx((1, 2, 5))
    assert slowness == {"b0": pytest.approx(3)}


def test_workers_are_compared_by_others_between_them():
    measured = {"a": (1, 2, 0, 0), "b": (0, 4, 6, 0), "c": (0, 0, 12, 16)}
    layer_s, slowness = speeds(measured, 4)
    assert layer_s == pytest.approx((1, 2, 3, 4), rel=0.01)
    assert slowness == {"b": pytest.approx(2, rel=0.01), "c": pytest.approx(4, rel=0.01)}


def test_times_that_vary_a_little_make_nobody_slow():
    assert speeds({"a": (1.0, 1.05), "b": (1.1, 1.0)}, 2)[1] == {}
    assert speeds({}, 2) == ((0.0, 0.0), {})


def test_a_layer_keeps_its_time_until_it_is_measured_again():
    assert updated((0.0, 2.0), (1.0, 1.0)) == (1.0, 2.0)
    assert updated((0.5,), (1.0, 1.0)) == (1.0, 1.0)


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(*[st.floats(0, 1e6)] * 3)))
def test_whatever_is_measured_gives_finite_times(measured):
    layer_s, slowness = speeds(measured, 3)
    assert all(map(isfinite, (*layer_s, *slowness.values())))
