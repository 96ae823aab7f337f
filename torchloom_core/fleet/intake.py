"""What was received since the last tick, and the rings it goes to; the fleet state keeps it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from torchloom_core.fleet.rings import Rings
from torchloom_core.fleet.sample_stretch import SampleStretch
from torchloom_core.plugin.arrays import Floats, Ints, samples_in
from torchloom_core.plugin.needs import PolicyNeed, metrics_with_past, windows_s
from torchloom_core.wire.messages import Hello, Telemetry

_INT64_BYTES = _FLOAT64_BYTES = 8
_KNOWN_HEADERS = 1000

Batches = tuple[list[int], list[bytes], list[int]]
"""Rows, newest samples and times of the batches that share a header."""

_Columns = tuple[NDArray[np.intp], NDArray[np.intp]]

Heard = dict[int, tuple[Telemetry, int]]
"""Row to the last batch of the tick, and when it came."""


class Intake:
    """Telemetry on its way into the columns of the metrics that somebody needs.

    Attributes
    ----------
    metrics : Rings
        The columns, as a view reads them.
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
        """Keep a batch until the tick closes; only its newest sample is needed."""
        if len(batch.ts_ns) > _INT64_BYTES:
            # A tick's worth of whole batches would be kept in memory fresh from the system.
            newest = batch.values[-_FLOAT64_BYTES * len(batch.metrics) :]
            batch = replace(batch, ts_ns=batch.ts_ns[-_INT64_BYTES:], values=newest)
        self._pending.append((batch, ts_ns))

    def put(
        self, rows: NDArray[np.intp], metrics: tuple[str, ...], values: Floats, ts_ns: Ints
    ) -> None:
        """Write ``(rows, metrics)`` values, come at ``(rows,)``, into the coming column."""
        columns, numbers = self._wanted(metrics)
        self.metrics.put(numbers, rows, values[:, columns].T, ts_ns)

    def extend(self, rows: NDArray[np.intp], stretch: SampleStretch, workers: int) -> None:
        """Write the columns of several ticks; ``rows`` are those of the stretch's workers."""
        columns, numbers = self._wanted(stretch.metrics)
        shape = (len(self.metrics.number_of), len(stretch.ts_ns), workers)
        told: Floats = np.full(shape, np.nan)
        place = slice(0, workers) if np.array_equal(rows, np.arange(workers)) else rows
        all_reported = stretch.reported.all()
        for column, number in zip(columns, numbers, strict=True):
            values = stretch.values[column]
            told[number][:, place] = (
                values if all_reported else np.where(stretch.reported, values, np.nan)
            )
        self.metrics.extend(told, stretch.ts_ns)

    def _wanted(self, metrics: tuple[str, ...]) -> _Columns:
        """Return which columns of a header are wanted, and the numbers of their metrics."""
        known = self._columns_of.get(metrics)
        if known is None:
            number_of = self.metrics.number_of
            pairs = [(i, number_of[m]) for i, m in enumerate(metrics) if m in number_of]
            columns, numbers = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
            if len(self._columns_of) >= _KNOWN_HEADERS:
                self._columns_of.clear()
            known = self._columns_of[metrics] = (columns, numbers)
        return known

    def close_column(
        self,
        row_of: Mapping[str, int],
        hello: Sequence[Hello],
        may_begin: Callable[[int, int], bool],
    ) -> tuple[Heard, list[str]]:
        """Write what is pending and end the column.

        Parameters
        ----------
        may_begin : callable
            ``(row, incarnation)``: whether that life may take the place of the known one.

        Returns
        -------
        newest : dict of int to (Telemetry, int)
            The last batch of every known worker that sent one.
        strangers : list of str
            Workers that nobody introduced, or of which a life may begin that said no hello.
        """
        strangers: dict[str, None] = {}
        newest: Heard = {}
        by_header: dict[tuple[str, ...], Batches] = {}
        headers: dict[int, tuple[str, ...]] = {}
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
                    # What a worker sent first is written first, under whatever header.
                    self._write_all(by_header)
                    headers = {row: metrics}
                header = by_header.get(metrics)
                if header is None:
                    header = by_header[metrics] = ([], [], [])
                header[0].append(row)
                header[1].append(batch.values[-_FLOAT64_BYTES * len(metrics) :])
                header[2].append(ts_ns)
        self._pending.clear()
        self._write_all(by_header)
        self.metrics.close_column()
        return newest, list(strangers)

    def _write_all(self, by_header: dict[tuple[str, ...], Batches]) -> None:
        for metrics, (rows, values, stamps) in by_header.items():
            self._write(metrics, rows, values, stamps)
        by_header.clear()

    def _write(
        self, metrics: tuple[str, ...], rows: list[int], values: list[bytes], stamps: list[int]
    ) -> None:
        if not len(self._wanted(metrics)[0]):
            return
        table = np.frombuffer(b"".join(values), dtype="<f8").reshape(len(rows), len(metrics))
        row_index, ts_ns = np.array(rows, dtype=np.intp), np.array(stamps, dtype=np.int64)
        self.put(row_index, metrics, table, ts_ns)

    def forget(self, row: int) -> None:
        """Clear one worker's past: another life must not inherit it."""
        self.metrics.forget(row)

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows."""
        self.metrics.grow(workers)
