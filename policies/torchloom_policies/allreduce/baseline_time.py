"""The usual wire time of steps that send too little to show the bandwidth."""

import math
import statistics
from collections import deque

_RECENT = 15
_ODD = math.log(1.5)
"""Deviation, as a logarithm, that makes a step an outlier and a probe worthwhile."""
_USUAL = 5
"""Steps after which the usual time is known; the first may belong to another mode."""
_ODDS = 4
"""Consecutive outliers that show a change: a single one may come from a rank that was late to all
messages of a step, for instance on a slow core, and not from a link."""


class BaselineTime:
    """Separates outliers from usual steps, and detects a change of the usual time."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_RECENT)
        self._odds: deque[float] = deque(maxlen=_ODDS)

    @property
    def is_first(self) -> bool:
        """Whether only one step was taken; it may include a wait for earlier messages."""
        return len(self._logs) == 1

    def forget(self) -> None:
        """Drop all steps."""
        self._logs.clear()
        self._odds.clear()

    def take(self, wire_s: float) -> bool:
        """Take a step's time; return whether it is usual."""
        took = math.log(wire_s)
        usual = statistics.median(self._logs) if len(self._logs) >= _USUAL else took
        if abs(took - usual) > _ODD:
            self._odds.append(took - usual)
            return False
        self._odds.clear()
        self._logs.append(took)
        return True

    def shift(self) -> float | None:
        """Return by how much the logarithm has changed, once enough outliers have shown it.

        Their time is the usual one from then on; a change back is detected in the same way.
        """
        if len(self._odds) < _ODDS:
            return None
        odd = statistics.median(self._odds)
        usual = statistics.median(self._logs) + odd
        self.forget()
        self._logs.extend([usual] * _USUAL)
        return odd
