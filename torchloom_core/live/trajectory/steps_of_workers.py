"""The steps of a worker that took far longer than its usual ones."""

import math
import statistics
from collections import deque

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.messages import Telemetry

_STEP_S = "step_time_s"
_SLOW = 2.0
_GRAIN_S = 0.2
"""A step is slow if it takes `_SLOW` times the usual time and this much more, seconds."""

_RECENT, _STORED = 31, 64


class SlowSteps:
    """The newest slow steps of one worker."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._usual_s = math.inf
        self._new = 0
        self._slow: deque[tuple[int, float, float]] = deque(maxlen=_STORED)

    def take(self, batch: Telemetry) -> int | None:
        """Take a batch of samples; return the stamp of its last one, None if it has none."""
        if not batch.ts_ns:
            return None
        times = np.frombuffer(batch.ts_ns, dtype="<i8")
        if _STEP_S in batch.metrics:
            column = batch.metrics.index(_STEP_S)
            steps = np.frombuffer(batch.values, dtype="<f8")[column :: len(batch.metrics)]
            for end_ns, took_s in zip(times.tolist(), steps.tolist(), strict=True):
                self._add(end_ns, took_s)
        return int(times[-1])

    def _add(self, end_ns: int, took_s: float) -> None:
        if not took_s >= 0:  # NaN
            return
        if took_s > _SLOW * self._usual_s + _GRAIN_S:
            self._slow.append((end_ns, took_s, self._usual_s))
            return
        self._recent.append(took_s)
        self._new += 1
        if self._new > min(len(self._recent) // 2, _RECENT // 2):  # a median a step costs too much
            self._new = 0
            self._usual_s = statistics.median(self._recent)

    def still_s(self, begin_ns: int, end_ns: int, skew_ns: int) -> float:
        """Return the seconds that steps within a time took longer than usual.

        ``skew_ns`` is added to the stamps.
        """
        return sum(
            took_s - usual_s
            for at_ns, took_s, usual_s in self._slow
            if at_ns + skew_ns >= begin_ns and at_ns + skew_ns - round(took_s * SECOND_NS) <= end_ns
        )
