"""The guard metrics of one role: one value a tick, and the steps at which they came."""

from collections import deque
from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Ints
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire.actions import Guard

FEWEST = 5
"""Least values before and after a change for a verdict."""

_MAX_VALUES = 4096
_JITTER_NS = SECOND_NS // 4
"""Largest difference between reports of the same step."""
_DECAY = 0.99
"""Decay per tick of the usual share of workers that report a metric."""
_LARGEST = 1e100
"""Larger values are no measurements, and their squares overflow."""
_LEAST_NOISE = 1e-3
"""Least noise relative to the level: smaller differences are not worth a rollback."""


class FurthestSteps:
    """The highest step of each row, over all of its incarnations.

    Attributes
    ----------
    most : int
        The highest median step so far, -1 before any: a single wrong report does not move it.
    """

    def __init__(self) -> None:
        self._of_row: Ints = np.full(0, -1, dtype=np.int64)
        self.most = -1

    def went_back(self, rows: Ints, steps: Ints) -> bool:
        """Take the current steps of rows; return whether all of them are earlier than before.

        A worker that rejoins alone is behind the others for a while; if all are behind, the run
        started over, and the steps so far are dropped.
        """
        if not len(rows):
            return False
        more = int(rows.max()) + 1 - len(self._of_row)
        if more > 0:
            self._of_row = np.pad(self._of_row, (0, more), constant_values=-1)
        before = self._of_row[rows]
        back = bool(np.all(steps < np.where(before < 0, self.most, before)))
        if back:
            self._of_row[:] = self.most = -1
        self._of_row[rows] = np.maximum(self._of_row[rows], steps)
        self.most = max(self.most, int(np.median(steps)))
        return back


class GuardMetrics:
    """One value of each guard metric a tick: its median over the training workers of a role.

    Attributes
    ----------
    furthest : FurthestSteps
        The highest steps of the role's workers.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        self._seen: dict[str, deque[tuple[int, float]]] = {
            metric: deque(maxlen=_MAX_VALUES) for metric in metrics
        }
        self._share: dict[str, float] = {}
        self._steps_ns: deque[int] = deque(maxlen=_MAX_VALUES)
        self._progress_ns = 0
        self.furthest = FurthestSteps()

    def look(self, fleet: FleetState, rows: Sequence[int], now_ns: int) -> str:
        """Add one value of each metric of the training workers in ``rows``.

        Return how the run went back, after all earlier values were dropped; else "".
        """
        was_at = self.furthest.most
        went_back = self.furthest.went_back(*fleet.times.current_steps(rows, now_ns))
        if went_back:
            self._steps_ns.clear()
            for seen in self._seen.values():
                seen.clear()
        progress_ns = int(np.median(fleet.times.progress_ns[rows]))
        if progress_ns > self._progress_ns + _JITTER_NS:
            self._progress_ns = progress_ns
            self._steps_ns.append(now_ns)
        for metric, seen in self._seen.items():
            values = fleet.last_column(metric)[rows]
            values = values[~np.isnan(values)]
            # The median of a few would hide that the others report NaN.
            share, usual = len(values) / len(rows), self._share.get(metric, 0.0)
            self._share[metric] = max(share, usual * _DECAY)
            if len(values) and share >= usual / 2:
                seen.append((now_ns, float(np.median(values))))
        return f"from step {was_at} to {self.furthest.most}" if went_back else ""

    def is_seen(self, metric: str) -> bool:
        """Return whether a worker has reported the metric."""
        return bool(self._seen.get(metric))

    def newest(self, metric: str) -> float | None:
        """Return the newest median of a guard metric, or None."""
        seen = self._seen.get(metric)
        return seen[-1][1] if seen else None

    def values(self, guard: Guard, from_ns: int, to_ns: int) -> list[float]:
        """Return the medians of the guard's metric after ``from_ns``, until ``to_ns``."""
        return [v for at, v in self._seen[guard.metric] if from_ns < at <= to_ns]

    def is_silent(self, guard: Guard, since_ns: int, now_ns: int) -> bool:
        """Return whether steps go on but the metric is not reported.

        A stalled or unreachable run reports nothing either, and does not count.
        """
        steps = sum(at > since_ns for at in self._steps_ns)
        return steps >= FEWEST and not self.values(guard, since_ns, now_ns)

    def level(self, guard: Guard, now_ns: int) -> tuple[float, float]:
        """Return the level of the guard's metric now, and its noise around a straight line.

        The noise is 0 if there are too few values.
        """
        values = self.values(guard, now_ns - round(guard.window_s * SECOND_NS), now_ns)
        series = np.asarray([value for value in values if abs(value) < _LARGEST])
        if len(series) < FEWEST:
            return 0.0, 0.0
        at = np.arange(len(series), dtype=float)
        slope, start = np.polyfit(at, series, 1)
        left = series - (slope * at + start)
        level = float(np.median(series[-max(FEWEST, len(series) // 3) :]))
        noise = 1.4826 * float(np.median(np.abs(left - np.median(left))))
        return level, max(noise, _LEAST_NOISE * abs(level), 1e-12)
