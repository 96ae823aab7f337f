"""Limit how often a browser sends requests: a rate, and a burst."""

import time
from collections.abc import Callable


class RateLimit:
    """A token bucket.

    Examples
    --------
    >>> clock = iter([0.0, 0.0, 0.0, 0.0, 0.5]).__next__
    >>> twice = RateLimit(per_s=2.0, at_once=2, now_s=clock)
    >>> [twice.is_taken() for _ in range(4)]
    [True, True, False, True]
    """

    def __init__(
        self, per_s: float, at_once: int, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_s, self._at_once, self._now_s = per_s, float(at_once), now_s
        self._left, self._at_s = self._at_once, now_s()

    def is_taken(self) -> bool:
        """Take a token, and return whether there was one."""
        now_s = self._now_s()
        self._left = min(self._at_once, self._left + self._per_s * (now_s - self._at_s))
        self._at_s = now_s
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
