"""Where time comes from: the system live, a hand-set clock elsewhere; and a moment in words."""

import time
from datetime import UTC, datetime
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What the loop that drives the kernel asks for the time."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch, UTC."""


# It goes on while the machine is suspended, which the monotonic clock of Linux does not.
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_SUSPENDED_NS = SECOND_NS // 1000


class SystemClock:
    """The wall clock as it was when this was made, and from then on the time since.

    It neither runs back nor leaps when the wall clock is set: a step of it would reorder the
    events of a run, or make all that is waited for late at once.
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
        """Return by how many seconds the wall clock was set since, ahead (> 0) or back."""
        return (time.time_ns() - self.now_ns()) / SECOND_NS


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time that it was moved to."""
        return self._now_ns

    def advance_s(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self._now_ns += round(seconds * SECOND_NS)


def moment_text(ts_ns: int) -> str:
    """Return a moment as ISO 8601, UTC, no finer than it is.

    Examples
    --------
    >>> moment_text(1_767_225_637_000_000_000), moment_text(1_767_225_600_000_000_000)
    ('2026-01-01T00:00:37Z', '2026-01-01')
    """
    seconds, rest_ns = divmod(ts_ns, SECOND_NS)
    when = datetime.fromtimestamp(seconds, UTC)
    if rest_ns:
        digits = 3 if rest_ns % 1_000_000 == 0 else 6 if rest_ns % 1000 == 0 else 9
        return f"{when:%Y-%m-%dT%H:%M:%S}.{f'{rest_ns:09}'[:digits]}Z"
    if when.second:
        return f"{when:%Y-%m-%dT%H:%M:%SZ}"
    if when.hour or when.minute:
        return f"{when:%Y-%m-%dT%H:%MZ}"
    return f"{when:%Y-%m-%d}"
