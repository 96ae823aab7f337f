"""What an evaluation says of how far it is, by a clock that is set by hand."""

import pytest

from torchloom_core.cli.evaluate_progress import Pace, lines
from torchloom_core.clock import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


def test_the_rest_takes_as_long_a_piece_as_what_was_done_so_far(clock):
    pace = Pace(clock)
    assert pace.left("runs", 0, 100) == ""
    clock.advance_s(40.0)
    assert pace.left("runs", 1, 100) == "about 66m left"
    clock.advance_s(20.0)
    assert pace.left("runs", 2, 100) == "about 49m left"


def test_runs_that_are_found_finished_do_not_count_as_fast_ones(clock):
    pace = Pace(clock)
    pace.left("runs", 50, 100)
    clock.advance_s(10.0)
    assert pace.left("runs", 51, 100) == "about 8m left"
    assert pace.left("runs", 90, 100) == "about 100s left"
    assert pace.left("runs", 100, 100) == ""


def test_what_comes_next_has_a_pace_of_its_own(clock):
    pace = Pace(clock)
    pace.left("forecasts", 0.0, 1.0)
    clock.advance_s(30.0)
    assert pace.left("forecasts", 0.75, 1.0) == "about 10s left"
    assert pace.left("policies", 0, 2) == ""
    clock.advance_s(5.0)
    assert pace.left("policies", 1, 2) == "about 5.0s left"


def test_in_a_log_there_is_a_line_now_and_then(clock):
    said = []
    told = lines(clock, said.append)
    for run in range(1001):
        told("runs", run, 1000)
        clock.advance_s(1.0)
    assert said[:2] == ["runs 30 of 1000, about 16m left", "runs 60 of 1000, about 16m left"]
    assert len(said) == 33


def test_in_a_log_a_long_evaluation_says_no_more_than_a_line_a_hundredth(clock):
    said = []
    told = lines(clock, said.append)
    for part in range(10_001):
        told("forecasts", part / 10_000, 1.0)
        clock.advance_s(60.0)
    assert said[0] == "forecasts 1%, about 165h left"
    assert 90 < len(said) <= 100
