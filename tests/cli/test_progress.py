"""What a long command says of how far it is, by a clock that is set by hand."""

import pytest

from torchloom_core.cli.progress import lines
from torchloom_core.clock import SECOND_NS, ManualClock


class Log:
    """A log in which a line is due with every hundredth, as half a minute goes by before it."""

    def __init__(self):
        self.clock, self.said = ManualClock(), []
        self.told = lines(lambda: self.clock.now_ns() / SECOND_NS, self.said.append)

    def last(self, what, done, total, after_s=30.0):
        self.clock.advance_s(after_s)
        self.told(what, done, total)
        return self.said[-1]


@pytest.fixture
def log():
    return Log()


def test_the_rest_takes_as_long_a_piece_as_what_was_done_so_far(log):
    log.told("runs", 0, 50)
    assert log.last("runs", 1, 50, after_s=50.0) == "runs 1 of 50"
    assert log.last("runs", 2, 50, after_s=60.0) == "runs 2 of 50, about 48m left"
    assert log.last("runs", 3, 50, after_s=30.0) == "runs 3 of 50, about 35m left"


def test_runs_that_are_found_finished_do_not_count_as_fast_ones(log):
    assert log.last("runs", 50, 100) == "runs 50 of 100"
    assert log.last("runs", 51, 100) == "runs 51 of 100, about 24m left"
    assert log.last("runs", 90, 100) == "runs 90 of 100"
    assert log.last("runs", 91, 100) == "runs 91 of 100, about 4m left"
    assert log.last("runs", 100, 100) == "runs 100 of 100"


def test_what_comes_next_has_a_pace_of_its_own(log):
    log.told("forecasts", 0.25, 1.0)
    assert log.last("forecasts", 0.75, 1.0) == "forecasts 75%, about 15s left"
    assert log.last("policies", 1, 4) == "policies 1 of 4"
    assert log.last("policies", 2, 4) == "policies 2 of 4, about 60s left"


def test_in_a_log_there_is_a_line_now_and_then(log):
    for run in range(1001):
        log.told("runs", run, 1000)
        log.clock.advance_s(1.0)
    assert log.said[:2] == ["runs 30 of 1000, about 16m left", "runs 60 of 1000, about 16m left"]
    assert len(log.said) == 33


def test_in_a_log_a_long_evaluation_says_no_more_than_a_line_a_hundredth(log):
    for part in range(10_001):
        log.told("forecasts", part / 10_000, 1.0)
        log.clock.advance_s(60.0)
    assert log.said[0] == "forecasts 1%, about 165h left"
    assert 90 < len(log.said) <= 100
