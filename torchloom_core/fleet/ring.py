"""A ring buffer of one metric: a column a tick, written by the fleet state, read without a copy."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.plugin.arrays import Floats, Ints, frozen


class Ring:
    """The last ``columns`` values of one metric for every worker.

    Stored as ``(2 * columns, workers)`` with every column written twice, so that any window
    is one contiguous slice, transposed to ``(workers, samples)``.

    Attributes
    ----------
    newest, newest_ns : (workers,)
        The last valid value and when it came, NaN and 0 before.
    past : Past, optional
        When the values changed, where somebody needs that.
    """

    def __init__(self, columns: int, workers: int, *, with_past: bool = False) -> None:
        self.columns = columns
        self._store = np.full((2 * columns, workers), np.nan)
        self._head = 0
        self.newest: Floats = np.full(workers, np.nan)
        self.newest_ns: Ints = np.zeros(workers, dtype=np.int64)
        self._fresh: Floats = np.full(workers, np.nan)
        self.past = Past(workers) if with_past else None

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
        if self.past is not None:
            self.past.note(self.newest, self.newest_ns)

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
        twin.past = None if self.past is None else self.past.copy()
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's past: another life must not inherit it."""
        self._store[:, row] = np.nan
        self._fresh[row] = np.nan
        self.newest[row] = np.nan
        self.newest_ns[row] = 0
        if self.past is not None:
            self.past.forget(row)

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows; the new ones hold NaN."""
        more = workers - self._store.shape[1]
        self._store = np.pad(self._store, ((0, 0), (0, more)), constant_values=np.nan)
        self._fresh = np.pad(self._fresh, (0, more), constant_values=np.nan)
        self.newest = np.pad(self.newest, (0, more), constant_values=np.nan)
        self.newest_ns = np.pad(self.newest_ns, (0, more))
        if self.past is not None:
            self.past.grow(workers)


class Past:
    """When the values of one metric, from tick to tick, first and last became other ones.

    Attributes
    ----------
    began_ns : (workers,) int64
        When the first value came, 0 before.
    moved_ns, changed_ns : (workers,) int64
        The first time and the last, 0 where all were the same.
    """

    def __init__(self, workers: int) -> None:
        self.began_ns: Ints = np.zeros(workers, dtype=np.int64)
        self.moved_ns: Ints = np.zeros(workers, dtype=np.int64)
        self.changed_ns: Ints = np.zeros(workers, dtype=np.int64)
        self._value: Floats = np.full(workers, np.nan)

    def note(self, newest: Floats, newest_ns: Ints) -> None:
        """Take the newest values as a tick ends, and when they came."""
        is_first = self.began_ns == 0
        changed = (newest != self._value) & ~is_first
        np.copyto(self.began_ns, newest_ns, where=is_first)
        np.copyto(self.changed_ns, newest_ns, where=changed)
        np.copyto(self.moved_ns, newest_ns, where=changed & (self.moved_ns == 0))
        np.copyto(self._value, newest)

    def copy(self) -> "Past":
        """Return a past that stays as it is when this one goes on."""
        twin = Past(0)
        twin.moved_ns, twin.changed_ns = self.moved_ns.copy(), self.changed_ns.copy()
        twin.began_ns, twin._value = self.began_ns.copy(), self._value.copy()
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's past."""
        self.began_ns[row] = self.moved_ns[row] = self.changed_ns[row] = 0
        self._value[row] = np.nan

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows, in which nothing has changed."""
        more = workers - len(self.moved_ns)
        self.began_ns = np.pad(self.began_ns, (0, more))
        self.moved_ns = np.pad(self.moved_ns, (0, more))
        self.changed_ns = np.pad(self.changed_ns, (0, more))
        self._value = np.pad(self._value, (0, more), constant_values=np.nan)
