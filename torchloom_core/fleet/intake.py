"""What was received since the last tick, and the rings it goes to; the fleet state keeps it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from torchloom_core.fleet.ring import Ring
from torchloom_core.fleet.rings import Rings
from torchloom_core.plugin.arrays import Floats, Ints, samples_in
from torchloom_core.plugin.needs import PolicyNeed, metrics_with_past, windows_s
from torchloom_core.wire.messages import Hello, Telemetry

_INT64_BYTES = _FLOAT64_BYTES = 8
_KNOWN_HEADERS = 1000

Batches = tuple[list[int], list[bytes], list[int]]
"""Rows, newest samples and times of the batches that share a header."""

Newest = dict[int, tuple[Telemetry, int]]
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
        with_past = metrics_with_past(needs)
        self._rings = {
            metric: Ring(samples_in(window_s, tick_s), 0, with_past=metric in with_past)
            for metric, window_s in sorted(windows_s(needs).items())
        }
        self._pending: list[tuple[Telemetry, int]] = []
        self._columns_of: dict[tuple[str, ...], list[tuple[int, Ring]]] = {}
        self.metrics = Rings(self._rings, tick_s, stale_after_s)

    def take(self, batch: Telemetry, ts_ns: int) -> None:
        """Keep a batch until the tick closes; only its newest sample is needed."""
        if len(batch.ts_ns) > _INT64_BYTES:
            # A tick's worth of whole batches would be kept in memory fresh from the system.
            newest = batch.values[-_FLOAT64_BYTES * len(batch.metrics) :]
            batch = replace(batch, ts_ns=batch.ts_ns[-_INT64_BYTES:], values=newest)
        self._pending.append((batch, ts_ns))

    def put(
        self, rows: NDArray[np.intp], metrics: Sequence[str], values: Floats, ts_ns: int
    ) -> None:
        """Write ``(rows, metrics)`` values straight into the coming column."""
        stamps: Ints = np.full(len(rows), ts_ns, dtype=np.int64)
        for column, metric in enumerate(metrics):
            if metric in self._rings:
                self._rings[metric].put(rows, values[:, column], stamps)

    def close_column(
        self,
        row_of: Mapping[str, int],
        hello: Sequence[Hello],
        may_begin: Callable[[int, int], bool],
    ) -> tuple[Newest, list[str]]:
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
        newest: Newest = {}
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
        for ring in self._rings.values():
            ring.close_column()
        return newest, list(strangers)

    def _write_all(self, by_header: dict[tuple[str, ...], Batches]) -> None:
        for metrics, (rows, values, stamps) in by_header.items():
            self._write(metrics, rows, values, stamps)
        by_header.clear()

    def _write(
        self, metrics: tuple[str, ...], rows: list[int], values: list[bytes], stamps: list[int]
    ) -> None:
        wanted = self._columns_of.get(metrics)
        if wanted is None:
            wanted = [(i, self._rings[m]) for i, m in enumerate(metrics) if m in self._rings]
            if len(self._columns_of) >= _KNOWN_HEADERS:
                self._columns_of.clear()
            self._columns_of[metrics] = wanted
        if not wanted:
            return
        table = np.frombuffer(b"".join(values), dtype="<f8").reshape(len(rows), len(metrics))
        row_index = np.array(rows, dtype=np.intp)
        ts_ns = np.array(stamps, dtype=np.int64)
        for column, ring in wanted:
            ring.put(row_index, table[:, column], ts_ns)

    def forget(self, row: int) -> None:
        """Clear one worker's past: another life must not inherit it."""
        for ring in self._rings.values():
            ring.forget(row)

    def grow(self, workers: int) -> None:
        """Make room for ``workers`` rows."""
        for ring in self._rings.values():
            ring.grow(workers)
