"""The usual wire time of steps, and the detection of a change."""

import math

import pytest

from torchloom_policies.allreduce.link_filter import BaselineTime


def taken(usual, *seconds):
    return [usual.take(each) for each in seconds]


def test_up_to_three_outliers_are_no_change():
    usual = BaselineTime()
    assert all(taken(usual, *[0.1] * 6))
    assert taken(usual, 0.3, 0.3, 0.3, 0.1) == [False, False, False, True]
    assert taken(usual, 0.3) == [False]
    assert usual.shift() is None


def test_four_consecutive_outliers_set_a_new_usual_time():
    usual = BaselineTime()
    taken(usual, *[0.1] * 6, 0.3, 0.3, 0.02, 0.3)
    assert usual.shift() == pytest.approx(math.log(3.0))
    assert usual.shift() is None
    assert taken(usual, 0.3, 0.1) == [True, False]


def test_the_first_steps_are_never_outliers():
    assert all(taken(BaselineTime(), 0.1, 0.5, 0.02, 0.1, 0.1))
