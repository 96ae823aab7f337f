"""What steps usually take on the wire, while they tell of no bandwidth."""

import math
import statistics
from collections import deque

_RECENT = 15
_ODD = math.log(1.5)
"""What is reason enough to ask the links."""
_USUAL = 5
"""Steps after which it is known what they usually take; the first may be of another mode."""
_ODDS = 4
"""Steps one after the other that must be odd: who comes last to all of a step's messages, as a
slow core has it, waits for nobody, and tells of no link."""


class BaselineTime:
    """Tells odd steps from others, and when it is the usual that has changed."""

    def __init__(self) -> None:
        self._logs: deque[float] = deque(maxlen=_RECENT)
        self._odds: deque[float] = deque(maxlen=_ODDS)

    @property
    def is_first(self) -> bool:
        """Whether only one step was taken: it may have waited for what others had sent before."""
        return len(self._logs) == 1

    def forget(self) -> None:
        """Begin anew: what follows may take any other time."""
        self._logs.clear()
        self._odds.clear()

    def take(self, wire_s: float) -> bool:
        """Take a step's time; say whether it is like those before it."""
        took = math.log(wire_s)
        usual = statistics.median(self._logs) if len(self._logs) >= _USUAL else took
        if abs(took - usual) > _ODD:
            self._odds.append(took - usual)
            return False
        self._odds.clear()
        self._logs.append(took)
        return True

    def shift(self) -> float | None:
        """Return by how much the logarithm has changed, once enough odd steps have shown it.

        What they took is the usual from then on. Where it ends as it began, the way back is as
        long as the way there.
        """
        if len(self._odds) < _ODDS:
            return None
        odd = statistics.median(self._odds)
        usual = statistics.median(self._logs) + odd
        self.forget()
        self._logs.extend([usual] * _USUAL)
        return odd
