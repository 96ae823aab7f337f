"""What steps usually take on the wire, and when that has changed."""

import math

import pytest

from torchloom_policies.allreduce.baseline_time import BaselineTime


def taken(usual, *seconds):
    return [usual.take(each) for each in seconds]


def test_an_odd_step_or_three_are_no_change():
    usual = BaselineTime()
    assert all(taken(usual, *[0.1] * 6))
    assert taken(usual, 0.3, 0.3, 0.3, 0.1) == [False, False, False, True]
    assert taken(usual, 0.3) == [False]
    assert usual.shift() is None


def test_four_odd_steps_one_after_the_other_are_the_usual_from_then_on():
    usual = BaselineTime()
    taken(usual, *[0.1] * 6, 0.3, 0.3, 0.02, 0.3)
    assert usual.shift() == pytest.approx(math.log(3.0))
    assert usual.shift() is None
    assert taken(usual, 0.3, 0.1) == [True, False]


def test_what_is_usual_is_not_known_at_the_first_steps():
    assert all(taken(BaselineTime(), 0.1, 0.5, 0.02, 0.1, 0.1))
