"""Outcomes of tried compression modes: rolled back by a guard, or slow at a bandwidth."""

import math
from collections import deque
from collections.abc import Mapping

_HISTORY = 64
_LEAST_QUALITY = 1e-3
_SAME = math.log(1.5)
"""Bandwidths closer than this, as a logarithm, count as the same."""


class ModeRecord:
    """The quality of each mode, and the modes and changes excluded for now.

    Parameters
    ----------
    quality : mapping of str to float
        Prior: steps that ``none`` needs to a loss, over those that the mode needs.
    forgive_s : float
        How long a bad outcome excludes a mode, seconds.
    penalty : float
        Factor on a mode's quality after a rollback by a guard.
    """

    def __init__(self, quality: Mapping[str, float], forgive_s: float, penalty: float) -> None:
        self._quality = dict(quality)
        self._forgive_s, self._penalty = forgive_s, penalty
        self._hurt_s: dict[str, float] = {}
        self._slow: deque[tuple[str, float, float]] = deque(maxlen=_HISTORY)
        self._refused: deque[tuple[str, float]] = deque(maxlen=_HISTORY)

    def quality(self, mode: str) -> float:
        """Return the progress of a step relative to one without compression."""
        return self._quality.get(mode, 1.0)

    def hurt(self, mode: str, now_s: float) -> None:
        """Record that a guard has rolled the mode back."""
        self._hurt_s[mode] = now_s
        self._quality[mode] = max(_LEAST_QUALITY, self.quality(mode) * self._penalty)

    def was_slow(self, mode: str, bytes_per_s: float, now_s: float) -> None:
        """Record that the mode made less progress than the one before it, at this bandwidth."""
        self._slow.append((mode, math.log(bytes_per_s), now_s))

    def refused(self, change: str, now_s: float) -> None:
        """Record that a change of other knobs was rolled back, or measured worse."""
        self._refused.append((change, now_s))

    def was_refused(self, change: str, now_s: float) -> bool:
        """Return whether this change is excluded now."""
        since_s = now_s - self._forgive_s
        return any(one == change and when_s > since_s for one, when_s in self._refused)

    def is_excluded(self, mode: str, bytes_per_s: float, now_s: float) -> bool:
        """Return whether the mode is excluded at this bandwidth now."""
        since_s = now_s - self._forgive_s
        if self._hurt_s.get(mode, -math.inf) > since_s:
            return True
        at = math.log(bytes_per_s)
        return any(
            slow == mode and when_s > since_s and abs(at - then) < _SAME
            for slow, then, when_s in self._slow
        )
