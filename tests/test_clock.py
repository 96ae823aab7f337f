"""The machine's clock as a run sees it: it neither runs back nor leaps, and counts a suspend."""

import time

import pytest

from torchloom_core.floor.clock import SECOND_NS, SystemClock, moment_text
from torchloom_threadlet.trainer.sample_buffer import SampleBuffer

START_NS = 1_700_000_000 * SECOND_NS


class Clocks:
    """The wall clock, the time since boot and the monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.wall_ns, self.boot_ns, self.monotonic_ns = START_NS, 9 * SECOND_NS, 5 * SECOND_NS

    def pass_s(self, seconds: float) -> None:
        self.suspend_s(seconds)
        self.monotonic_ns += round(seconds * SECOND_NS)

    def suspend_s(self, seconds: float) -> None:
        self.boot_ns += round(seconds * SECOND_NS)
        self.set_s(seconds)

    def set_s(self, seconds: float) -> None:
        self.wall_ns += round(seconds * SECOND_NS)


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(time, "time_ns", lambda: clocks.wall_ns)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _: clocks.boot_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks.monotonic_ns)
    return clocks


def test_after_a_suspend_it_is_the_time_of_the_wall_clock_again(clocks):
    clock = SystemClock()
    clocks.suspend_s(8 * 3600.0)
    assert clock.now_ns() == clocks.wall_ns
    clocks.pass_s(2.0)
    assert clock.now_ns() == clocks.wall_ns


@pytest.mark.parametrize("step_s", [-30 * 86_400.0, -3600.0, 2.0, 3600.0, 30 * 86_400.0])
def test_it_continues_when_the_wall_clock_is_set(clocks, step_s):
    clock = SystemClock()
    before = clock.now_ns()
    clocks.set_s(step_s)
    assert clock.wall_ahead_s() == step_s
    assert clock.now_ns() == before
    clocks.pass_s(1.0)
    assert clock.now_ns() == before + SECOND_NS
    clocks.set_s(-step_s)
    assert (clock.now_ns(), clock.wall_ahead_s()) == (clocks.wall_ns, 0.0)


def test_samples_are_stamped_with_the_wall_clocks_time_after_a_suspend(clocks):
    samples = SampleBuffer()
    clocks.suspend_s(8 * 3600.0)
    samples.waiting.append((1, clocks.monotonic_ns, {}))
    [(stamp_ns, _)] = samples.take(0)
    assert stamp_ns == clocks.wall_ns


def test_samples_are_not_stamped_by_a_wall_clock_that_was_set(clocks):
    samples = SampleBuffer()
    clocks.set_s(3600.0)
    samples.waiting.append((1, clocks.monotonic_ns, {}))
    [(stamp_ns, _)] = samples.take(0)
    assert stamp_ns == START_NS


def test_a_sample_that_waited_long_is_stamped_with_when_it_was_taken(clocks):
    samples = SampleBuffer()
    samples.waiting.append((1, clocks.monotonic_ns, {}))
    taken_ns = clocks.wall_ns
    clocks.pass_s(30.0)
    [(stamp_ns, _)] = samples.take(0)
    assert stamp_ns == taken_ns


@pytest.mark.parametrize(
    ("after_ns", "text"),
    [
        (0, "2026-01-01"),
        (3600 * SECOND_NS, "2026-01-01T01:00Z"),
        (37 * SECOND_NS, "2026-01-01T00:00:37Z"),
        (1_000_000, "2026-01-01T00:00:00.001Z"),
        (1_000, "2026-01-01T00:00:00.000001Z"),
        (1, "2026-01-01T00:00:00.000000001Z"),
    ],
)
def test_a_time_is_shown_without_trailing_zero_units(after_ns, text):
    assert moment_text(1_767_225_600 * SECOND_NS + after_ns) == text
