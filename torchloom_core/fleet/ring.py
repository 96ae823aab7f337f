"""A ring buffer of one metric: a column a tick, written by the fleet state, read without a copy."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats, Ints, frozen


class Ring:
    """The last ``columns`` values of one metric for every worker.

    Stored as ``(2 * columns, workers)`` with every column written twice, so that any window
    is one contiguous slice, transposed to ``(workers, samples)``.
    """

    def __init__(self, columns: int, workers: int) -> None:
        self.columns = columns
        self._store = np.full((2 * columns, workers), np.nan)
        self._head = 0
        self.newest: Floats = np.full(workers, np.nan)
        self.newest_ns: Ints = np.zeros(workers, dtype=np.int64)
        self._fresh: Floats = np.full(workers, np.nan)

    def put(self, rows: NDArray[np.intp], values: Floats, ts_ns: Ints) -> None:
        """Take ``(n,)`` values for the coming column; of several for one row the last stays."""
        self._fresh[rows] = values
        valid = ~np.isnan(values)
        if not valid.all():
            rows, values, ts_ns = rows[valid], values[valid], ts_ns[valid]
        self.newest[rows] = values
        self.newest_ns[rows] = ts_ns

    def close_column(self) -> None:
        """End the tick: what was put becomes the newest column, NaN where nothing was."""
        self._head = (self._head + 1) % self.columns
        self._store[self._head] = self._fresh
        self._store[self._head + self.columns] = self._fresh
        self._fresh.fill(np.nan)

    def window(self, samples: int) -> Floats:
        """Return the last ``samples`` columns, oldest first, as ``(workers, samples)``."""
        end = self._head + self.columns + 1
        return frozen(self._store[end - samples : end].T)

    def copy(self) -> "Ring":
        """Return a ring that stays as it is when this one goes on."""
        twin = Ring(self.columns, 0)
        twin._store = self._store.copy()
        twin._head = self._head
        twin.newest, twin.newest_ns = self.newest.copy(), self.newest_ns.copy()
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's past: another life must not inherit it."""
        self._store[:, row] = np.nan
        self._fresh[row] = np.nan
        self.newest[row] = np.nan
        self.newest_ns[row] = 0

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows; the new ones hold NaN."""
        more = workers - self._store.shape[1]
        self._store = np.pad(self._store, ((0, 0), (0, more)), constant_values=np.nan)
        self._fresh = np.pad(self._fresh, (0, more), constant_values=np.nan)
        self.newest = np.pad(self.newest, (0, more), constant_values=np.nan)
        self.newest_ns = np.pad(self.newest_ns, (0, more))
