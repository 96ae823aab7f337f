"""Times of the first and last change of every metric's value; part of the rings."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.live.fleet.newest import Newest


class Past:
    """Change times of the values of some metrics, from tick to tick.

    Attributes
    ----------
    began_ns : (metrics, workers) int64
        Arrival of the first value, 0 before.
    moved_ns, changed_ns : (metrics, workers) int64
        The first and the last change, 0 without a change.
    """

    def __init__(self, metrics: int) -> None:
        self.began_ns: Ints = np.zeros((metrics, 0), dtype=np.int64)
        self.moved_ns: Ints = np.zeros((metrics, 0), dtype=np.int64)
        self.changed_ns: Ints = np.zeros((metrics, 0), dtype=np.int64)
        self._value: Floats = np.full((metrics, 0), np.nan)

    def __len__(self) -> int:
        return len(self._value)

    def note(self, newest: Newest) -> None:
        """Compare with the newest values at the end of a tick; uses the first ``len(self)``."""
        value, ts_ns = newest.value[: len(self)], newest.ts_ns[: len(self)]
        is_first = self.began_ns == 0
        changed = (value != self._value) & ~is_first
        np.copyto(self.began_ns, ts_ns, where=is_first)
        np.copyto(self.changed_ns, ts_ns, where=changed)
        np.copyto(self.moved_ns, ts_ns, where=changed & (self.moved_ns == 0))
        np.copyto(self._value, value)

    def extend(self, values: Floats, known: NDArray[np.bool_], ts_ns: Ints) -> None:
        """Compare ``(metrics, ticks, n)`` values of the first workers, arrived at ``(ticks,)``.

        Parameters
        ----------
        known : (metrics, ticks, n) bool
            False for NaN.
        """
        metrics, ticks, workers = values.shape
        began_ns, moved_ns, changed_ns, before = (
            table[:, :workers]
            for table in (self.began_ns, self.moved_ns, self.changed_ns, self._value)
        )
        former: Floats = np.empty((metrics, ticks + 1, workers))
        former[:, 0] = before
        former[:, 1:] = values
        if not known.all():
            # A missing value is that of the last tick with one.
            at = np.where(known, np.arange(1, ticks + 1)[:, None], 0)
            np.maximum.accumulate(at, axis=1, out=at)
            former[:, 1:] = np.take_along_axis(former, at, axis=1)
        np.copyto(before, former[:, -1])
        changed = (former[:, 1:] != former[:, :-1]) & ~np.isnan(former[:, :-1])
        changes, begins = changed.any(axis=1), known.any(axis=1) & (began_ns == 0)
        moves = changes & (moved_ns == 0)
        if begins.any():
            np.copyto(began_ns, ts_ns[known.argmax(axis=1)], where=begins)
        if moves.any():
            np.copyto(moved_ns, ts_ns[changed.argmax(axis=1)], where=moves)
        last = ticks - 1 - changed[:, ::-1].argmax(axis=1)
        np.copyto(changed_ns, ts_ns[last], where=changes)

    def copy(self, metrics: NDArray[np.intp]) -> "Past":
        """Return an independent copy for some metrics."""
        twin = Past(0)
        twin.began_ns, twin.moved_ns = self.began_ns[metrics], self.moved_ns[metrics]
        twin.changed_ns, twin._value = self.changed_ns[metrics], self._value[metrics]
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's times."""
        self.began_ns[:, row] = self.moved_ns[:, row] = self.changed_ns[:, row] = 0
        self._value[:, row] = np.nan

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows without changes."""
        more = ((0, 0), (0, workers - self._value.shape[1]))
        self.began_ns = np.pad(self.began_ns, more)
        self.moved_ns = np.pad(self.moved_ns, more)
        self.changed_ns = np.pad(self.changed_ns, more)
        self._value = np.pad(self._value, more, constant_values=np.nan)
