"""Find the ranks that take longer for a step than their peers.

Like the policy ``straggler``, this compares each rank's own work in a step where ranks report it:
ranks that wait for each other all report the step time of the slowest. The board calls it once a
second.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats

OWN_S, WHOLE_S = "compute_s", "step_time_s"

RATIO = 1.5
"""Slow means more than this many times the median, unless ``[policies.straggler]`` sets it."""

_ABOVE_S, _BELOW_S = 5.0, 10.0
"""A rank is slow once it was above the threshold for the first, until below for the second.

The first is the default patience of the policy at its default tick: the page names what it acts on.
"""

FEWEST = 3
"""Ranks below which the median means nothing."""

NAMED = 3
"""Ranks that a sentence names."""


class Slow:
    """Records which ranks are slow: above the threshold for a while, and not yet below for longer.

    A rank is slow above ``ratio`` times ``median_s``, the median of ``time_s``, each rank's newest
    value of ``metric``: NaN where there is none to compare, or for the median below three.
    """

    def __init__(self) -> None:
        self.ratio = RATIO
        self.metric = WHOLE_S
        self.time_s: Floats = np.zeros(0)
        self.median_s = np.nan
        self._above_since_s: Floats = np.zeros(0)
        self._below_since_s: Floats = np.zeros(0)
        self._is_slow: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def update(
        self, now_s: float, trains: NDArray[np.bool_], own_s: Floats, whole_s: Floats
    ) -> None:
        """Take the times of all ranks, NaN where a rank reports none; rows stay in place."""
        own_s, whole_s = np.where(trains, own_s, np.nan), np.where(trains, whole_s, np.nan)
        is_own = bool(np.count_nonzero(own_s > 0) >= FEWEST)
        self.metric = OWN_S if is_own else WHOLE_S
        time_s = own_s if is_own else whole_s
        self.time_s = np.where(np.isfinite(time_s) & (time_s > 0), time_s, np.nan)
        reported_s = self.time_s[~np.isnan(self.time_s)]
        self.median_s = float(np.median(reported_s)) if len(reported_s) >= FEWEST else np.nan

        is_above = self.time_s > self.ratio * self.median_s  # NaN compares false
        is_missing = np.isnan(self.time_s) & ~np.isnan(self.median_s)
        is_below = ~is_above & ~is_missing
        above_s = _since(now_s, self._above_since_s, is_above, is_below | ~trains)
        below_s = _since(now_s, self._below_since_s, is_below, is_above | ~trains)
        was_slow = np.zeros(len(trains), dtype=np.bool_)
        was_slow[: len(self._is_slow)] = self._is_slow
        self._is_slow = trains & (was_slow | (now_s - above_s >= _ABOVE_S))
        self._is_slow &= ~(now_s - below_s >= _BELOW_S)
        self._above_since_s, self._below_since_s = above_s, below_s

    def rows(self) -> list[int]:
        """Return the rows of the slow ranks, the slowest first."""
        rows = np.flatnonzero(self._is_slow)
        return [int(row) for row in rows[np.argsort(-self.time_s[rows], kind="stable")]]

    def summary(self, name_of: Callable[[int], str]) -> str:
        """Return the slow ranks in one line, the slowest first; empty if there are none."""
        rows = self.rows()
        if not rows:
            return ""
        named = some_of([f"{name_of(row)}{self._extent(row)}" for row in rows[:NAMED]], len(rows))
        ranks = "1 slow rank" if len(rows) == 1 else f"{len(rows)} slow ranks"
        step = "own work in a step" if self.metric == OWN_S else "step time"
        median = "" if np.isnan(self.median_s) else f"; median {step} {self.median_s:.3g} s"
        return f"{ranks}: {named}{median}"

    def _extent(self, row: int) -> str:
        time_s, ratio = self.time_s[row], self.time_s[row] / self.median_s
        if np.isnan(ratio):
            return ""
        until = "" if ratio > self.ratio else f", slow until {_BELOW_S:g} s below {self.ratio:g}x"
        return f" {time_s:.3g} s ({ratio:.1f}x the median{until})"


def some_of(named: Sequence[str], count: int) -> str:
    """Return the texts in a row, and how many of ``count`` they leave out."""
    more = count - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _since(
    now_s: float, before_s: Floats, begins: NDArray[np.bool_], ends: NDArray[np.bool_]
) -> Floats:
    """Return since when each row has been so, NaN where it is not; rows are only added."""
    since_s = np.full(len(begins), np.nan)
    since_s[: len(before_s)] = before_s
    since_s = np.where(begins & np.isnan(since_s), now_s, since_s)
    return np.where(ends, np.nan, since_s)
