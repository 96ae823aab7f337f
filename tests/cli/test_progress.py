"""What a long command says of how far it is, by a clock that is set by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import until
from torchloom_core.cli import progress as cli_progress
from torchloom_core.cli.progress import Lines, forwards, progress
from torchloom_core.clock import SECOND_NS, ManualClock


class Log:
    """A log in which a line is due with every hundredth, as half a minute goes by before it."""

    def __init__(self):
        self.clock, self.said = ManualClock(), []
        self.lines = Lines(lambda: self.clock.now_ns() / SECOND_NS, self.said.append)
        self.told = self.lines.told

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


def test_in_a_log_it_is_said_that_what_tells_nothing_goes_on(log):
    log.told("fit boosting", 0.98, 1.0)
    for _ in range(120):
        log.clock.advance_s(30.0)
        log.lines.still()
    assert log.said == [
        f"fit boosting: still at work, {so_far} since the last news"
        for so_far in ("60s", "2m", "4m", "8m", "16m", "32m")
    ]
    assert log.last("ask boosting", 0.5, 1.0) == "ask boosting 50%"
    log.clock.advance_s(60.0)
    log.lines.still()
    assert log.said[-1] == "ask boosting: still at work, 60s since the last news"


def test_in_a_log_nothing_is_added_while_there_is_something_to_tell(log):
    for part in range(1_000):
        log.told("forecasts", part / 1_000, 1.0)
        log.clock.advance_s(30.0)
        log.lines.still()
    assert not [line for line in log.said if "still" in line]


def test_a_log_has_no_bar_though_colours_are_forced(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as told:
        for run in range(3):
            told("runs", run, 2)
    assert capsys.readouterr().err == ""


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 9))))
def test_of_no_thing_is_told_that_it_has_gone_backwards(steps):
    seen = {"a": [0.0], "b": [0.0]}
    tell = forwards(lambda what, done, total: seen[what].append(done / total))
    for step in steps:
        tell(*step)
    for what, shares in seen.items():
        assert shares == sorted(shares)
        assert shares[-1] == max([done / total for of, done, total in steps if of == what] + [0.0])


def test_who_tells_nothing_for_long_is_spoken_for(monkeypatch, capsys):
    monkeypatch.setattr(cli_progress, "_QUIET_S", 0.01)
    said = []
    monkeypatch.setattr("sys.stderr.write", said.append)
    with progress():
        until(lambda: said)
    assert said[0].startswith("torchloom: still at work, ")
