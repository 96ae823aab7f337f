"""What has become of compression modes that were tried: which hurt, and where they were slow."""

import math
from collections import deque
from collections.abc import Mapping

_KEPT = 64
_LEAST_QUALITY = 1e-3
_SAME = math.log(1.5)
"""Bandwidths closer than this, as a logarithm, are taken for the same."""


class ModeRecord:
    """How much progress a step in each mode is worth, and what is not tried again for now.

    Parameters
    ----------
    quality : mapping of str to float
        Steps that ``none`` needs to a loss over those that the mode needs, before any evidence.
    forgive_s : float
        How long evidence against a mode keeps it from being tried.
    penalty : float
        What its quality is multiplied by when a guard has taken it back.
    """

    def __init__(self, quality: Mapping[str, float], forgive_s: float, penalty: float) -> None:
        self._quality = dict(quality)
        self._forgive_s, self._penalty = forgive_s, penalty
        self._hurt_s: dict[str, float] = {}
        self._slow: deque[tuple[str, float, float]] = deque(maxlen=_KEPT)
        self._refused: deque[tuple[str, float]] = deque(maxlen=_KEPT)

    def quality(self, mode: str) -> float:
        """Return the progress of a step, of a step without compression."""
        return self._quality.get(mode, 1.0)

    def hurt(self, mode: str, now_s: float) -> None:
        """Note that a guard has taken the mode back."""
        self._hurt_s[mode] = now_s
        self._quality[mode] = max(_LEAST_QUALITY, self.quality(mode) * self._penalty)

    def was_slow(self, mode: str, bytes_per_s: float, now_s: float) -> None:
        """Note that the mode made less progress than the one left for it, at that bandwidth."""
        self._slow.append((mode, math.log(bytes_per_s), now_s))

    def refused(self, change: str, now_s: float) -> None:
        """Note that a guard has taken back a change of other knobs."""
        self._refused.append((change, now_s))

    def was_refused(self, change: str, now_s: float) -> bool:
        """Say whether a guard has taken that back, and it is not to be tried now."""
        since_s = now_s - self._forgive_s
        return any(one == change and when_s > since_s for one, when_s in self._refused)

    def spoken_against(self, mode: str, bytes_per_s: float, now_s: float) -> bool:
        """Say whether the mode is not to be tried now."""
        since_s = now_s - self._forgive_s
        if self._hurt_s.get(mode, -math.inf) > since_s:
            return True
        at = math.log(bytes_per_s)
        return any(
            slow == mode and when_s > since_s and abs(at - then) < _SAME
            for slow, then, when_s in self._slow
        )
