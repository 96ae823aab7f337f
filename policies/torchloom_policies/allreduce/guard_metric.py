"""Check that the metric that guards a change has enough values for the kernel's guard."""

import math
from collections import deque

import numpy as np

from torchloom_core.plugin import FleetView, Guard
from torchloom_policies.allreduce.options import AllreduceTunerOptions

_ENOUGH = 6
"""Values before a change: the guard needs five, and the oldest may have left the window by then."""
_STEPS = 10
"""Minimum length of a window, in steps: each gives one value."""
_LONGEST_S = 3600.0
_LARGEST = 1e100
_SILENT_S = 60.0


class GuardMetric:
    """Counts the ticks with a value of the metric, as the guard does, and builds the guard.

    Attributes
    ----------
    window_s : float
        Length of the windows before and after a change, seconds.
    """

    def __init__(self, options: AllreduceTunerOptions) -> None:
        self._options = options
        self._seen_s: deque[float] = deque(maxlen=1000)
        self._last_s = math.nan
        self.window_s = options.guard_window_s

    def look(self, view: FleetView, rows: list[int], step_s: float) -> None:
        """Record whether it is reported; ``step_s`` is how long a step takes."""
        least_s = _STEPS * max(step_s, view.tick_s)
        self.window_s = max(self._options.guard_window_s, min(math.ceil(least_s), _LONGEST_S))
        values = view.window(self._options.guard_metric, view.tick_s)[rows, -1]
        values = values[~np.isnan(values)]
        seen = len(values) > 0 and abs(float(np.median(values))) < _LARGEST
        if seen:
            self._seen_s.append(view.now_s)
        if seen or math.isnan(self._last_s):
            self._last_s = view.now_s
        while self._seen_s and not 0.0 <= view.now_s - self._seen_s[0] < self.window_s:
            self._seen_s.popleft()

    def trouble(self, now_s: float) -> str:
        """Return the alert text if no worker reports the metric, or nothing."""
        if now_s - self._last_s <= max(_SILENT_S, self.window_s):
            return ""
        return (
            "only lossless modes are proposed: need a worker that reports the guard_metric "
            f"{self._options.guard_metric}, none has for a minute"
        )

    @property
    def is_sufficient(self) -> bool:
        """Whether the guard would detect a harmful change."""
        return len(self._seen_s) >= _ENOUGH

    @property
    def guard(self) -> Guard | None:
        """The guard of a change, None if no worker reports the metric."""
        if not self._seen_s:
            return None
        options = self._options
        return Guard(metric=options.guard_metric, band=options.guard_band, window_s=self.window_s)
