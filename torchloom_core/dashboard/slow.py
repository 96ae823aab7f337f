"""Find the ranks that take longer for a step than their peers.

Like the policy ``straggler``, this compares each rank's own work in a step where ranks report it:
ranks that wait for each other all report the step time of the slowest. The board calls it once a
second.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats

OWN_S, WHOLE_S = "compute_s", "step_time_s"

RATIO = 1.5
"""Slow means more than this many times the median, unless ``[policies.straggler]`` sets it."""

_LONG_S = 10.0
"""A rank has to be slow for this long without a break, seconds."""

_FEWEST = 3
"""Ranks below which the median means nothing."""

_NAMED = 3


class Slow:
    """Records since when each rank has been slow.

    Attributes
    ----------
    ratio : float
        A rank is slow above this many times the median.
    """

    def __init__(self) -> None:
        self.ratio = RATIO
        self._since_s: Floats = np.zeros(0)
        self._last_s = 0.0
        self._time_s: Floats = np.zeros(0)
        self._median_s = np.nan
        self._is_own = False

    def update(
        self, now_s: float, trains: NDArray[np.bool_], own_s: Floats, whole_s: Floats
    ) -> None:
        """Take the times of all ranks, NaN where a rank reports none; rows stay in place."""
        own_s, whole_s = np.where(trains, own_s, np.nan), np.where(trains, whole_s, np.nan)
        self._is_own = bool(np.count_nonzero(own_s > 0) >= _FEWEST)
        self._time_s = own_s if self._is_own else whole_s
        reported_s = self._time_s[self._time_s > 0]
        self._median_s = float(np.median(reported_s)) if len(reported_s) >= _FEWEST else np.nan
        before_s = np.full(len(trains), np.nan)
        before_s[: len(self._since_s)] = self._since_s
        since_s = np.where(np.isnan(before_s), now_s, before_s)
        self._since_s = np.where(self._time_s > self.ratio * self._median_s, since_s, np.nan)
        self._last_s = now_s

    def rows(self) -> list[int]:
        """Return the rows of the slow ranks, the slowest first."""
        rows = np.flatnonzero(self._last_s - self._since_s >= _LONG_S)  # NaN compares false
        return [int(row) for row in rows[np.argsort(-self._time_s[rows], kind="stable")]]

    def summary(self, name_of: Callable[[int], str]) -> str:
        """Return the slow ranks in one line, the slowest first; empty if there are none."""
        rows = self.rows()
        if not rows:
            return ""
        named = ", ".join(
            f"{name_of(row)} {self._time_s[row]:.3g} s"
            f" ({self._time_s[row] / self._median_s:.1f}x the median)"
            for row in rows[:_NAMED]
        )
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        ranks = "1 slow rank" if len(rows) == 1 else f"{len(rows)} slow ranks"
        step = "own work in a step" if self._is_own else "step time"
        return f"{ranks}: {named}{more}; median {step} {self._median_s:.3g} s"
