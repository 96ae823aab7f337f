"""How long to wait between attempts, so that thousands of workers do not make them all at once."""

import random


class Backoff:
    """Random waits that get longer, each between ``first_s`` and three times the one before.

    They are never above ``most_s``. This is decorrelated jitter: workers that failed at one time
    are spread more with each attempt.
    """

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._last_s = first_s

    def next_s(self) -> float:
        """Return how many seconds to wait before the next attempt."""
        self._last_s = random.uniform(self._first_s, min(self._most_s, 3 * self._last_s))
        return self._last_s

    def reset(self) -> None:
        """Begin anew, after a success."""
        self._last_s = self._first_s
