"""When each worker last reported and progressed, in columns with room for more rows."""

from collections.abc import Sequence

import numpy as np

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.interface.arrays import Floats, Ints, frozen

_GAP_NS = 5 * SECOND_NS
"""After a longer gap in a worker's reports, earlier messages may still arrive for as long."""


class ReportTimes:
    """Columns of ``(capacity,)`` int64, one row per worker.

    Attributes
    ----------
    seen_ns, progress_ns, first_ns : (capacity,)
        When the worker last reported, last finished a step, and first sent a sample; 0 for never.
    step : (capacity,)
        Its last finished step, -1 before the first.
    """

    def __init__(self, stale_after_s: float) -> None:
        self.stale_ns = round(stale_after_s * SECOND_NS)
        self.seen_ns: Ints = np.zeros(0, dtype=np.int64)
        self.progress_ns: Ints = np.zeros(0, dtype=np.int64)
        self.first_ns: Ints = np.zeros(0, dtype=np.int64)
        self.step: Ints = np.zeros(0, dtype=np.int64)
        self._since_ns: Ints = np.zeros(0, dtype=np.int64)

    @property
    def capacity(self) -> int:
        """How many rows there is room for."""
        return len(self.step)

    def grow(self, rows: int) -> None:
        """Make room for as many rows, and for more to come."""
        if rows <= self.capacity:
            return
        more = max(16, self.capacity // 4, rows - self.capacity)
        self.seen_ns = np.pad(self.seen_ns, (0, more))
        self._since_ns = np.pad(self._since_ns, (0, more))
        self.progress_ns = np.pad(self.progress_ns, (0, more))
        self.first_ns = np.pad(self.first_ns, (0, more))
        self.step = np.pad(self.step, (0, more), constant_values=-1)

    def begin(self, row: int, ts_ns: int) -> None:
        """Begin an incarnation."""
        self.progress_ns[row] = ts_ns
        self.step[row] = -1

    def forget(self, row: int) -> None:
        """Clear a row for another worker."""
        columns = self.seen_ns, self._since_ns, self.progress_ns, self.first_ns
        for column in columns:
            column[row] = 0
        self.step[row] = -1

    def mark_seen(self, row: int, ts_ns: int) -> None:
        """Note a message of a worker."""
        if ts_ns > self.seen_ns[row] + _GAP_NS:
            self._since_ns[row] = ts_ns
        self.seen_ns[row] = ts_ns

    def is_stale(self, row: int, now_ns: int) -> bool:
        """Return whether the worker is unreachable: it has not reported for too long."""
        return bool(self.seen_ns[row] < now_ns - self.stale_ns)

    def is_settled(self, row: int, now_ns: int) -> bool:
        """Return whether the worker has reported long enough for earlier messages to arrive."""
        return bool(self._since_ns[row] <= now_ns - _GAP_NS <= self.seen_ns[row])

    def current_steps(self, rows: Sequence[int], now_ns: int) -> tuple[Ints, Ints]:
        """Return the reachable ones of the rows that have reported a step, and the steps."""
        at = np.asarray(rows, dtype=np.int64)
        at = at[(self.seen_ns[at] >= now_ns - self.stale_ns) & (self.step[at] >= 0)]
        return at, self.step[at]

    def columns(self, now_ns: int, workers: int) -> tuple[Ints, Floats, Floats, Floats]:
        """Return step, age of heartbeat and of progress, and the time watched, seconds."""
        first_ns = self.first_ns[:workers]
        watched_s = np.where(first_ns > 0, (now_ns - first_ns) / SECOND_NS, np.nan)
        return (
            frozen(self.step[:workers].copy()),
            frozen((now_ns - self.seen_ns[:workers]) / SECOND_NS),
            frozen((now_ns - self.progress_ns[:workers]) / SECOND_NS),
            frozen(watched_s),
        )
