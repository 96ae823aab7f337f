"""What a save costs as the run feels it: how much longer steps take until it is stored.

A save delays the steps during which it is copied and stored, also where nothing waits for it: it
takes memory bandwidth, a core or the network from them. So the cost of a save is the time that
these steps took beyond the usual, their waits included.
"""

import statistics
from collections import deque
from collections.abc import Collection

_STEPS = 64
_SAVES = 9
_MOST = 10.0
"""A step longer than so many usual ones is an evaluation, or another wait that is not a save's."""


class FeltCosts:
    """Measures the saves of each tier; times are monotonic seconds."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_STEPS)
        self._usual_s = 0.0
        self._last_s: float | None = None
        self._running: dict[str, float] = {}
        self._past: dict[str, deque[tuple[float, float]]] = {}

    def at_boundary(self, now_s: float) -> None:
        """Take note of a step: what it took beyond the usual is shared by the tiers that store."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is None:
            return
        took_s = now_s - last_s
        if not self._running:
            self._usual.append(took_s)
            return
        beyond_s = took_s - self._usual_s
        if self._usual and beyond_s < _MOST * self._usual_s:
            for tier in self._running:
                self._running[tier] += beyond_s / len(self._running)

    def begin(self, tiers: Collection[str]) -> None:
        """Note that a save begins in these tiers."""
        if self._usual and not self._running:
            most_s = _MOST * statistics.median(self._usual)
            self._usual_s = statistics.mean(s for s in self._usual if s <= most_s)
        self._running |= dict.fromkeys(tiers, 0.0)

    def end(self, tier: str, blocked_s: float, *, saved: bool) -> float:
        """Note the end of a tier's save, that training waited ``blocked_s`` for.

        Returns what was felt of it, seconds.
        """
        felt_s = max(self._running.pop(tier, 0.0), 0.0)
        if saved and tier not in self._past:  # the first one starts a writer and touches memory
            self._past[tier] = deque(maxlen=_SAVES)
        elif saved:
            self._past[tier].append((felt_s, blocked_s))
        return felt_s

    def usual_s(self, tier: str) -> float | None:
        """Return the median of a tier's last saves: at least what training waited.

        The first save does not count; None: there is no other yet.
        """
        past = self._past.get(tier)
        if not past:
            return None
        felt_s = statistics.median(felt for felt, _ in past)
        return max(felt_s, statistics.median(blocked for _, blocked in past))
