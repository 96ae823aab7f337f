"""Sparse telemetry of workers at evenly spaced times."""

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints


class MeasuredSteps:
    """``(steps, workers, metrics)`` in which only rows with a value take memory.

    Parameters
    ----------
    metrics : int

    Examples
    --------
    >>> import numpy as np
    >>> from torchloom_core.lab.learning import MeasuredSteps
    >>> past = MeasuredSteps(metrics=1)
    >>> past.add(0, np.array([[50.0], [np.nan]]))  # of two workers
    >>> past.add(2, np.array([[51.0], [60.0], [70.0]]))  # and of one more
    >>> past.shape, len(past)
    ((3, 3, 1), 4)
    >>> past.table(0, 2)[..., 0]
    array([[50., nan],
           [nan, nan],
           [51., 60.]])
    """

    TABLE_BYTES: ClassVar = 1 << 24
    """Largest table of a block of workers, unless that of a single worker is larger."""

    def __init__(self, metrics: int) -> None:
        self._metrics = metrics
        self._parts: list[tuple[int, NDArray[np.intp], Floats]] = []
        self._steps = self._workers = 0

    @classmethod
    def of(cls, table: Floats) -> "MeasuredSteps":
        """Convert a table ``(steps, workers, metrics)`` with NaN for missing values."""
        found = cls(table.shape[2])
        for step, values in enumerate(table):
            found.add(step, values)
        return found

    def add(self, step: int, values: Floats) -> None:
        """Add ``(workers, metrics)`` of a later step; workers may be added, never removed."""
        rows = np.flatnonzero(np.isfinite(values).any(axis=1))
        if len(rows):
            self._parts.append((step, rows, values[rows]))
        self._steps = step + 1
        self._workers = max(self._workers, len(values))

    def __len__(self) -> int:
        return sum(len(rows) for _, rows, _ in self._parts)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Steps from the first to the last, workers and metrics."""
        return self._steps, self._workers, self._metrics

    def table(self, first: int, end: int) -> Floats:
        """Return ``(steps, end - first, metrics)`` of some workers, NaN for missing values."""
        table = np.full((self._steps, end - first, self._metrics), np.nan)
        order, starts = self._by_worker
        step, worker, values = self._all
        own = order[starts[first] : starts[end]]
        table[step[own], worker[own] - first] = values[own]
        return table

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of workers whose table is at most ``TABLE_BYTES``."""
        at_once = max(1, self.TABLE_BYTES // max(1, 8 * self._steps * self._metrics))
        for first in range(0, self._workers, at_once):
            yield first, min(first + at_once, self._workers)

    @cached_property
    def _all(self) -> tuple[Ints, Ints, Floats]:
        if not self._parts:
            empty = np.zeros(0, dtype=np.int64)
            return empty, empty, np.zeros((0, self._metrics))
        steps = np.repeat([step for step, _, _ in self._parts], [len(r) for _, r, _ in self._parts])
        workers = np.concatenate([rows for _, rows, _ in self._parts])
        values = np.concatenate([values for _, _, values in self._parts])
        return steps.astype(np.int64), workers.astype(np.int64), values

    @cached_property
    def _by_worker(self) -> tuple[Ints, Ints]:
        """Return the rows in the order of their workers, and the start of each worker's rows."""
        _, worker, _ = self._all
        order: Ints = np.argsort(worker, kind="stable").astype(np.int64)
        starts = np.searchsorted(worker[order], np.arange(self._workers + 1))
        return order, starts.astype(np.int64)
