"""Ranks that need longer for a step than the others: the first screen says so.

As the policy ``straggler`` does, it compares what ranks compute for themselves, where that is told:
those that wait for each other all take as long as the slowest. The board looks once a second.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats

OWN_S, WHOLE_S = "compute_s", "step_time_s"

_RATIO = 1.5
"""Slow takes more than so many times the median."""

_LONG_S = 10.0
"""For so long without a break: a moment's is no news."""

_FEWEST = 3
"""Ranks below which there is no median to speak of."""

_NAMED = 3


class Slow:
    """Knows since when which rank has been slow."""

    def __init__(self) -> None:
        self._since_s: Floats = np.zeros(0)
        self._last_s = 0.0
        self._time_s: Floats = np.zeros(0)
        self._median_s = np.nan
        self._is_own = False

    def look(self, now_s: float, trains: NDArray[np.bool_], own_s: Floats, whole_s: Floats) -> None:
        """Look at all ranks, NaN where nothing is told; the rows are those of before."""
        own_s, whole_s = np.where(trains, own_s, np.nan), np.where(trains, whole_s, np.nan)
        self._is_own = bool(np.count_nonzero(own_s > 0) >= _FEWEST)
        self._time_s = own_s if self._is_own else whole_s
        told_s = self._time_s[self._time_s > 0]
        self._median_s = float(np.median(told_s)) if len(told_s) >= _FEWEST else np.nan
        before_s = np.full(len(trains), np.nan)
        before_s[: len(self._since_s)] = self._since_s
        since_s = np.where(np.isnan(before_s), now_s, before_s)
        self._since_s = np.where(self._time_s > _RATIO * self._median_s, since_s, np.nan)
        self._last_s = now_s

    def told(self, name_of: Callable[[int], str]) -> str:
        """Return who is slow, in one line, the slowest first; empty where nobody is.

        ``name_of`` tells whose a row is.
        """
        rows = np.flatnonzero(self._last_s - self._since_s >= _LONG_S)  # NaN compares false
        if not len(rows):
            return ""
        worst = rows[np.argsort(-self._time_s[rows], kind="stable")][:_NAMED]
        named = ", ".join(
            f"{name_of(row)} takes {self._time_s[row]:.3g} s" for row in worst.tolist()
        )
        more = f" and {len(rows) - len(worst)} more" if len(rows) > len(worst) else ""
        slow = "1 rank is" if len(rows) == 1 else f"{len(rows)} ranks are"
        step = "a step's own work" if self._is_own else "a step"
        said = f"{slow} slower than the others: for {step} {named}{more}"
        return f"{said}, the median is {self._median_s:.3g} s"
