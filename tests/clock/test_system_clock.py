"""The machine's clock as a run sees it: never back, and not left behind by a suspend."""

import time

import pytest

from torchloom_core.clock import SECOND_NS, SystemClock
from torchloom_threadlet.samples import Samples

START_NS = 1_700_000_000 * SECOND_NS


class Clocks:
    """The wall clock and the monotonic one, set by hand."""

    def __init__(self) -> None:
        self.wall_ns, self.monotonic_ns = START_NS, 5 * SECOND_NS

    def advance(self, seconds: float, wall_s: float | None = None) -> None:
        self.monotonic_ns += round(seconds * SECOND_NS)
        self.wall_ns += round((seconds if wall_s is None else wall_s) * SECOND_NS)


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(time, "time_ns", lambda: clocks.wall_ns)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks.monotonic_ns)
    return clocks


def test_after_a_suspend_it_is_the_time_of_the_wall_clock_again(clocks):
    clock = SystemClock()
    clocks.advance(0.0, wall_s=8 * 3600.0)
    assert clock.now_ns() == clocks.wall_ns
    clocks.advance(2.0)
    assert clock.now_ns() == clocks.wall_ns


def test_it_does_not_run_backwards_when_the_wall_clock_does(clocks):
    clock = SystemClock()
    before = clock.now_ns()
    clocks.advance(1.0, wall_s=-3600.0)
    assert clock.now_ns() == before + SECOND_NS
    clocks.advance(1.0)
    assert clock.now_ns() == before + 2 * SECOND_NS


def test_the_small_steps_of_a_wall_clock_that_is_kept_right_do_not_show(clocks):
    clock = SystemClock()
    for _ in range(100):
        before = clock.now_ns()
        clocks.advance(1.0, wall_s=1.009)
        assert clock.now_ns() == before + SECOND_NS


def test_samples_are_stamped_with_the_wall_clocks_time_after_a_suspend(clocks):
    samples = Samples()
    clocks.advance(0.0, wall_s=8 * 3600.0)
    samples.waiting.append((1, clocks.monotonic_ns, {}))
    [(stamp_ns, _)] = samples.take(0)
    assert stamp_ns == clocks.wall_ns


def test_a_sample_that_waited_long_is_stamped_with_when_it_was_taken(clocks):
    samples = Samples()
    samples.waiting.append((1, clocks.monotonic_ns, {}))
    taken_ns = clocks.wall_ns
    clocks.advance(30.0)
    [(stamp_ns, _)] = samples.take(0)
    assert stamp_ns == taken_ns
