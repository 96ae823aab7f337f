import math

import pytest

from torchloom_policies.allreduce.cost import CodingTimes
from torchloom_policies.allreduce.modes import prior_of

HERE, ELSEWHERE = math.log(1e8), math.log(1e9)


def test_only_times_measured_at_this_bandwidth_count_if_there_are_any():
    times = CodingTimes()
    for _ in range(8):
        times.take("int8", 4e-9, ELSEWHERE)
    times.take("int8", 2e-9, HERE)
    assert times.expected("int8", HERE) == (pytest.approx(2e-9), pytest.approx(0.05))
    assert times.expected("int8", ELSEWHERE)[0] == pytest.approx(4e-9)


def test_times_measured_at_another_bandwidth_are_less_certain():
    times = CodingTimes()
    times.take("int8", 4e-9, ELSEWHERE)
    assert times.tried("int8")
    assert not times.tried_at("int8", HERE)
    s_per_byte, log_sd = times.expected("int8", HERE)
    assert s_per_byte == pytest.approx(4e-9)
    assert log_sd > 5 * times.expected("int8", ELSEWHERE)[1]


def test_a_mode_that_never_ran_has_its_prior_coding_time():
    times, prior = CodingTimes(), prior_of("int8")
    assert times.expected("int8", HERE) == (1e-9 * prior.code_ns_per_byte, prior.code_log_sd)


def test_a_slow_first_step_is_bounded_by_the_prior():
    times, prior = CodingTimes(), prior_of("int8")
    times.take("int8", 1.0, HERE)
    most = 1e-9 * prior.code_ns_per_byte * math.exp(prior.code_log_sd)
    assert times.expected("int8", HERE)[0] == pytest.approx(most)
