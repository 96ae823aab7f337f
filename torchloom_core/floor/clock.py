"""Clocks: the system's for live runs, a manual one elsewhere; and times as text."""

import time
from datetime import UTC, datetime
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """The clock of the loop that drives the kernel."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch, UTC."""


# It continues during a suspend, unlike the monotonic clock of Linux.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SUSPENDED_NS = SECOND_NS // 1000


class SystemClock:
    """The wall clock at construction, plus the time elapsed since.

    It does not jump when the wall clock is set: a jump would reorder the events of a run, or make
    all deadlines expire at once.
    """

    def __init__(self) -> None:
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(_BOOT)
        self._monotonic_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch, UTC."""
        return self._boot_ns + time.clock_gettime_ns(_BOOT)

    def at_ns(self, monotonic_ns: int) -> int:
        """Return the time at which the monotonic clock showed ``monotonic_ns``."""
        zero_ns = self.now_ns() - time.monotonic_ns()
        if zero_ns > self._monotonic_ns + _SUSPENDED_NS:
            self._monotonic_ns = zero_ns
        return self._monotonic_ns + monotonic_ns

    def wall_ahead_s(self) -> float:
        """Return by how many seconds the wall clock was set since, forward (> 0) or back."""
        return (time.time_ns() - self.now_ns()) / SECOND_NS


class ManualClock:
    """A clock that moves only by :meth:`advance_s`."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time to which it was advanced."""
        return self._now_ns

    def advance_s(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._now_ns += round(seconds * SECOND_NS)


def moment_text(ts_ns: int) -> str:
    """Return a time as ISO 8601, UTC, without zero fractions, seconds or hours.

    Examples
    --------
    >>> moment_text(1_767_225_637_000_000_000), moment_text(1_767_225_600_000_000_000)
    ('2026-01-01T00:00:37Z', '2026-01-01')
    """
    seconds, rest_ns = divmod(ts_ns, SECOND_NS)
    try:
        when = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # before year 1 or after 9999
        return f"{seconds} s since 1970"
    if rest_ns:
        digits = 3 if rest_ns % 1_000_000 == 0 else 6 if rest_ns % 1000 == 0 else 9
        return f"{when:%Y-%m-%dT%H:%M:%S}.{f'{rest_ns:09}'[:digits]}Z"
    if when.second:
        return f"{when:%Y-%m-%dT%H:%M:%SZ}"
    if when.hour or when.minute:
        return f"{when:%Y-%m-%dT%H:%MZ}"
    return f"{when:%Y-%m-%d}"
