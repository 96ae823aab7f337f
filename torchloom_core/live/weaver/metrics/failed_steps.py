"""Counts the run's failed steps: those that a rank reports as not committed."""

import numpy as np

from torchloom_core.interface.arrays import Floats, grow


class FailedSteps:
    """The failed steps of the run since the Weaver started.

    A step fails on all ranks that take part, so each update adds the largest increase of a rank.
    The first value of a rank is where it starts: it may have failed steps before. A rank that
    restarts counts from 0 again.
    """

    def __init__(self) -> None:
        self._last: Floats = np.zeros(0)
        self.total = 0

    def update(self, newest: Floats) -> None:
        """Take ``(workers,)`` newest values, NaN where none.

        Examples
        --------
        >>> failed = FailedSteps()
        >>> for newest in ([2.0, 2.0], [3.0, 3.0], [np.nan, 0.0], [np.nan, 1.0]):
        ...     failed.update(np.array(newest))
        >>> failed.total
        2
        """
        last = grow(self._last, len(newest), np.nan)
        known = np.isfinite(newest)
        gained = np.where(newest < last, newest, newest - last)
        self.total += int(gained[np.isfinite(gained)].max(initial=0.0))
        self._last = np.where(known, newest, last)
