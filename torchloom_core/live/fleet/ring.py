"""A ring buffer of one metric: one column per tick, read without a copy."""

import numpy as np

from torchloom_core.interface.arrays import Floats, frozen


class Ring:
    """The last ``columns`` values of one metric for every worker.

    Stored as ``(2 * columns, workers)`` with every column written twice, so that any window
    is one contiguous slice, transposed to ``(workers, samples)``.
    """

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._store: Floats = np.full((2 * columns, 0), np.nan)
        self._head = 0

    def extend(self, values: Floats) -> None:
        """Add the columns of several ticks: ``(ticks, n)`` values of the first workers."""
        last = values[-self.columns :]
        head = self._head + len(values)
        start = (head - len(last) + 1) % self.columns
        until_end = self.columns - start
        for at, part in ((start, last[:until_end]), (0, last[until_end:])):
            for half in (at, at + self.columns):
                self._store[half : half + len(part), : values.shape[1]] = part
        self._head = head % self.columns

    def window(self, samples: int) -> Floats:
        """Return the last ``samples`` columns, oldest first, as ``(workers, samples)``."""
        end = self._head + self.columns + 1
        return frozen(self._store[end - samples : end].T)

    def copy(self) -> "Ring":
        """Return an independent copy."""
        twin = Ring(self.columns)
        twin._store, twin._head = self._store.copy(), self._head
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's values for its next incarnation."""
        self._store[:, row] = np.nan

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows; the new ones are NaN."""
        more = workers - self._store.shape[1]
        self._store = np.pad(self._store, ((0, 0), (0, more)), constant_values=np.nan)
