"""Progress of a long command on stderr, with a manual clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import until
from torchloom_core.cli import progress as cli_progress
from torchloom_core.cli.progress import Lines, forwards, progress
from torchloom_core.floor.clock import SECOND_NS, ManualClock


class Log:
    """A log in which each percent gives a line, as 30 s pass before it."""

    def __init__(self):
        self.clock, self.written = ManualClock(), []
        self.lines = Lines(lambda: self.clock.now_ns() / SECOND_NS, self.written.append)
        self.report = self.lines.report

    def last(self, what, done, total, after_s=30.0):
        self.clock.advance_s(after_s)
        self.report(what, done, total)
        return self.written[-1]


@pytest.fixture
def log():
    return Log()


def test_the_remaining_time_follows_from_the_average_so_far(log):
    log.report("runs", 0, 50)
    assert log.last("runs", 1, 50, after_s=50.0) == "runs 1 of 50"
    assert log.last("runs", 2, 50, after_s=60.0) == "runs 2 of 50, about 48m left"
    assert log.last("runs", 3, 50, after_s=30.0) == "runs 3 of 50, about 35m left"


def test_runs_finished_before_do_not_count_in_the_estimate(log):
    assert log.last("runs", 50, 100) == "runs 50 of 100"
    assert log.last("runs", 51, 100) == "runs 51 of 100, about 24m left"
    assert log.last("runs", 90, 100) == "runs 90 of 100"
    assert log.last("runs", 91, 100) == "runs 91 of 100, about 4m left"
    assert log.last("runs", 100, 100) == "runs 100 of 100"


def test_each_task_has_its_own_estimate(log):
    log.report("forecasts", 0.25, 1.0)
    assert log.last("forecasts", 0.75, 1.0) == "forecasts 75%, about 15s left"
    assert log.last("policies", 1, 4) == "policies 1 of 4"
    assert log.last("policies", 2, 4) == "policies 2 of 4, about 60s left"


def test_a_log_gets_at_most_one_line_in_30_s(log):
    for run in range(1001):
        log.report("runs", run, 1000)
        log.clock.advance_s(1.0)
    assert log.written[:2] == ["runs 30 of 1000, about 16m left", "runs 60 of 1000, about 16m left"]
    assert len(log.written) == 33


def test_a_log_gets_at_most_one_line_per_percent(log):
    for part in range(10_001):
        log.report("forecasts", part / 10_000, 1.0)
        log.clock.advance_s(60.0)
    assert log.written[0] == "forecasts 1%, about 165h left"
    assert 90 < len(log.written) <= 100


def test_a_silent_task_is_reported_at_growing_intervals(log):
    log.report("fit boosting", 0.98, 1.0)
    for _ in range(120):
        log.clock.advance_s(30.0)
        log.lines.check_silence()
    assert log.written == [
        f"fit boosting: still running, no progress reported for {so_far}"
        for so_far in ("60s", "2m", "4m", "8m", "16m", "32m")
    ]
    assert log.last("predict boosting", 0.5, 1.0) == "predict boosting 50%"
    log.clock.advance_s(60.0)
    log.lines.check_silence()
    assert log.written[-1] == "predict boosting: still running, no progress reported for 60s"


def test_a_log_has_no_bar_with_forced_colours(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress() as report:
        for run in range(3):
            report("runs", run, 2)
    assert capsys.readouterr().err == ""


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 9))))
def test_progress_never_goes_backwards(steps):
    seen = {"a": [0.0], "b": [0.0]}
    report = forwards(lambda what, done, total: seen[what].append(done / total))
    for step in steps:
        report(*step)
    for what, shares in seen.items():
        assert shares == sorted(shares)
        assert shares[-1] == max([done / total for of, done, total in steps if of == what] + [0.0])


def test_a_silent_command_prints_that_it_is_running(monkeypatch, capsys):
    monkeypatch.setattr(cli_progress, "_QUIET_S", 0.01)
    written = []
    monkeypatch.setattr("sys.stderr.write", written.append)
    with progress():
        until(lambda: written)
    assert written[0].startswith("torchloom: still running, ")
