"""The newest value of every metric and worker, and its time; part of the rings."""

import numpy as np
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints


class Newest:
    """The last valid values.

    Attributes
    ----------
    value : (metrics, workers) float64
        NaN without a value.
    ts_ns : (metrics, workers) int64
        Its arrival, 0 without a value.
    """

    def __init__(self, metrics: int) -> None:
        self.value: Floats = np.full((metrics, 0), np.nan)
        self.ts_ns: Ints = np.zeros((metrics, 0), dtype=np.int64)

    def put(self, metric: int, rows: NDArray[np.intp], values: Floats, ts_ns: Ints) -> None:
        """Store ``(n,)`` values that arrived at ``(n,)``; for repeated rows the last one."""
        known = ~np.isnan(values)
        if not known.all():
            rows, values, ts_ns = rows[known], values[known], ts_ns[known]
        self.value[metric, rows] = values
        self.ts_ns[metric, rows] = ts_ns

    def extend(self, values: Floats, known: NDArray[np.bool_], ts_ns: Ints) -> None:
        """Store ``(metrics, ticks, n)`` values of the first workers, arrived at ``(ticks,)``.

        Parameters
        ----------
        known : (metrics, ticks, n) bool
            False for NaN.
        """
        workers = values.shape[2]
        if known[:, -1].all():
            self.value[:, :workers] = values[:, -1]
            self.ts_ns[:, :workers] = ts_ns[-1]
            return
        last = len(ts_ns) - 1 - known[:, ::-1].argmax(axis=1)
        came = known.any(axis=1)
        value = np.take_along_axis(values, last[:, None], axis=1)[:, 0]
        np.copyto(self.value[:, :workers], value, where=came)
        np.copyto(self.ts_ns[:, :workers], ts_ns[last], where=came)

    def copy(self, metrics: NDArray[np.intp]) -> "Newest":
        """Return an independent copy for some metrics."""
        twin = Newest(0)
        twin.value, twin.ts_ns = self.value[metrics], self.ts_ns[metrics]
        return twin

    def forget(self, row: int) -> None:
        """Clear one worker's values."""
        self.value[:, row] = np.nan
        self.ts_ns[:, row] = 0

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows without values."""
        more = ((0, 0), (0, workers - self.value.shape[1]))
        self.value = np.pad(self.value, more, constant_values=np.nan)
        self.ts_ns = np.pad(self.ts_ns, more)
