"""Where time comes from: the system live, a hand-set clock in replay and simulation."""

import time
from typing import Protocol

SECOND_NS = 1_000_000_000


class Clock(Protocol):
    """What the loop that drives the kernel asks for the time."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch, UTC."""


class SystemClock:
    """The machine's clock, never running backwards within one process.

    Wall time is advanced by the monotonic clock, so that a step of the wall clock back (NTP)
    cannot reorder the events of a run. Where the wall clock is more than a second ahead, after a
    suspend say, in which the monotonic clock stands still, it is followed.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Return the time in nanoseconds since the Unix epoch, UTC."""
        now_ns = self._offset_ns + time.monotonic_ns()
        ahead_ns = time.time_ns() - now_ns
        if ahead_ns > SECOND_NS:
            self._offset_ns += ahead_ns
            return now_ns + ahead_ns
        return now_ns

    def at_ns(self, monotonic_ns: int) -> int:
        """Return the time at which the monotonic clock showed ``monotonic_ns``.

        By what :meth:`now_ns` made of the wall clock when it was last asked.
        """
        return self._offset_ns + monotonic_ns


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Return the time that was last set."""
        return self._now_ns

    def set_ns(self, now_ns: int) -> None:
        """Move to ``now_ns``.

        Raises
        ------
        ValueError
            If ``now_ns`` lies in the past.
        """
        if now_ns < self._now_ns:
            raise ValueError(f"need now_ns >= {self._now_ns}, was {now_ns}")
        self._now_ns = now_ns

    def advance_s(self, seconds: float) -> None:
        """Move forward by ``seconds``."""
        self.set_ns(self._now_ns + round(seconds * SECOND_NS))
