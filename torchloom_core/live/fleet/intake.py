"""Collect the telemetry of a tick, and write it to the rings; part of the fleet state."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from torchloom_core.interface.arrays import Floats, Ints, samples_in
from torchloom_core.interface.needs import PolicyNeed, metrics_with_past, windows_s
from torchloom_core.live.fleet.rings import Rings
from torchloom_core.live.fleet.samples import SampleStretch
from torchloom_core.wire.messages import Hello, Telemetry

_INT64_BYTES = _FLOAT64_BYTES = 8
_CACHED_HEADERS = 1000

Batches = tuple[list[int], list[bytes], list[int]]
"""Rows, newest samples and times of the batches that share a header."""

_Columns = tuple[NDArray[np.intp], NDArray[np.intp]]

NewestBatches = dict[int, tuple[Telemetry, int]]
"""Row to the last batch of the tick, and its arrival time."""


class Intake:
    """Telemetry on its way into the columns of the metrics in use.

    Attributes
    ----------
    metrics : Rings
        The columns that views read.
    """

    def __init__(self, needs: Iterable[PolicyNeed], tick_s: float, stale_after_s: float) -> None:
        needs = tuple(needs)
        self._pending: list[tuple[Telemetry, int]] = []
        self._columns_of: dict[tuple[str, ...], _Columns] = {}
        self.metrics = Rings(
            {metric: samples_in(s, tick_s) for metric, s in windows_s(needs).items()},
            metrics_with_past(needs),
            tick_s=tick_s,
            stale_after_s=stale_after_s,
        )

    def take(self, batch: Telemetry, ts_ns: int) -> None:
        """Store a batch until the tick closes, reduced to its newest sample."""
        if len(batch.ts_ns) > _INT64_BYTES:
            # Whole batches of a tick would take much more memory.
            newest = batch.values[-_FLOAT64_BYTES * len(batch.metrics) :]
            batch = replace(batch, ts_ns=batch.ts_ns[-_INT64_BYTES:], values=newest)
        self._pending.append((batch, ts_ns))

    def put(
        self, rows: NDArray[np.intp], metrics: tuple[str, ...], values: Floats, ts_ns: Ints
    ) -> None:
        """Write ``(rows, metrics)`` values that arrived at ``(rows,)`` into the next column."""
        columns, numbers = self._wanted(metrics)
        self.metrics.put(numbers, rows, values[:, columns].T, ts_ns)

    def extend(self, rows: NDArray[np.intp], stretch: SampleStretch, workers: int) -> None:
        """Write the columns of several ticks; ``rows`` are those of the stretch's workers."""
        columns, numbers = self._wanted(stretch.metrics)
        shape = (len(self.metrics.number_of), len(stretch.ts_ns), workers)
        table: Floats = np.full(shape, np.nan)
        place = slice(0, workers) if np.array_equal(rows, np.arange(workers)) else rows
        all_reported = stretch.reported.all()
        for column, number in zip(columns, numbers, strict=True):
            values = stretch.values[column]
            table[number][:, place] = (
                values if all_reported else np.where(stretch.reported, values, np.nan)
            )
        self.metrics.extend(table, stretch.ts_ns)

    def _wanted(self, metrics: tuple[str, ...]) -> _Columns:
        """Return the columns of a header that are in use, and the numbers of their metrics."""
        known = self._columns_of.get(metrics)
        if known is None:
            number_of = self.metrics.number_of
            pairs = [(i, number_of[m]) for i, m in enumerate(metrics) if m in number_of]
            columns, numbers = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
            if len(self._columns_of) >= _CACHED_HEADERS:
                self._columns_of.clear()
            known = self._columns_of[metrics] = (columns, numbers)
        return known

    def close_column(
        self,
        row_of: Mapping[str, int],
        hello: Sequence[Hello],
        may_begin: Callable[[int, int], bool],
    ) -> tuple[NewestBatches, list[str]]:
        """Write the pending batches and close the column.

        Parameters
        ----------
        may_begin : callable
            ``(row, incarnation)``: whether that incarnation may replace the known one.

        Returns
        -------
        newest : dict of int to (Telemetry, int)
            The last batch of every known worker that sent one.
        strangers : list of str
            Workers without a hello, of any or of this incarnation.
        """
        strangers: dict[str, None] = {}
        newest: NewestBatches = {}
        by_header: dict[tuple[str, ...], Batches] = {}
        headers: dict[int, tuple[str, ...]] = {}
        header: Batches = ([], [], [])
        last: tuple[str, ...] | None = None
        for batch, ts_ns in self._pending:
            row = row_of.get(batch.worker, -1)
            if row < 0 or hello[row].incarnation != batch.incarnation:
                if row < 0 or may_begin(row, batch.incarnation):
                    strangers[batch.worker] = None
                continue
            newest[row] = (batch, ts_ns)
            metrics = batch.metrics
            if metrics and batch.ts_ns:
                known = headers.setdefault(row, metrics)
                if known is not metrics and known != metrics:
                    # Batches of a worker are written in order, also if the header changes.
                    self._write_all(by_header)
                    headers = {row: metrics}
                    last = None
                if metrics is not last:  # hashing thirty names takes long
                    header, last = by_header.setdefault(metrics, ([], [], [])), metrics
                header[0].append(row)
                header[1].append(batch.values[-_FLOAT64_BYTES * len(metrics) :])
                header[2].append(ts_ns)
        self._pending.clear()
        self._write_all(by_header)
        self.metrics.close_column()
        return newest, list(strangers)

    def _write_all(self, by_header: dict[tuple[str, ...], Batches]) -> None:
        for metrics, (rows, values, stamps) in by_header.items():
            if len(self._wanted(metrics)[0]):
                table = np.frombuffer(b"".join(values), dtype="<f8")
                table = table.reshape(len(rows), len(metrics))
                row_index, ts_ns = np.array(rows, dtype=np.intp), np.array(stamps, dtype=np.int64)
                self.put(row_index, metrics, table, ts_ns)
        by_header.clear()
