"""Telemetry batches: the trainer's samples and the collectors' values in columns."""

import math
import time
from array import array
from collections.abc import Mapping, Sequence

from torchloom_core.wire.limits import MAX_COUNT, MAX_METRICS
from torchloom_core.wire.messages import Hello, Telemetry
from torchloom_threadlet.cleaning import sendable
from torchloom_threadlet.ipc import Samples, Sent

MAX_BATCH_BYTES = 256 << 10
_MAX_WAITING_ROWS = 20_000
_LONGEST_AGE_S = 1e9

Row = tuple[int, Mapping[str, float]]


def columns(rows: Sequence[Row]) -> tuple[tuple[str, ...], bytes, bytes]:
    """Return metric names, ``(samples,)`` times and ``(samples, metrics)`` values of ``rows``.

    Little-endian int64 and float64, NaN where a row lacks a metric. Names above the limit are left
    out.
    """
    names = sendable({name for _, row in rows for name in row})
    values = array("d", (row.get(name, math.nan) for _, row in rows for name in names))
    return names, array("q", (ts_ns for ts_ns, _ in rows)).tobytes(), values.tobytes()


def closing_row(rows: Sequence[Row], gauges: Mapping[str, float], now_ns: int) -> Row:
    """Return the last row with the newest value of every metric: readers may use it alone."""
    newest: dict[str, float] = {}
    for _, row in rows:
        newest.update(row)
    newest.update(gauges)
    return (rows[-1][0] if rows else now_ns), newest


class Batches:
    """Collects the trainer's reports and makes numbered batches of them."""

    def __init__(self, hello: Hello, sent: Sent) -> None:
        self._hello = hello
        self._batches = sent.batches
        self._dropped = sent.dropped
        self._rows: list[Row] = []
        self.latest = Samples(state=hello.state, step=-1, progress_ns=time.monotonic_ns())

    @property
    def sent(self) -> Sent:
        """The counts of this incarnation's telemetry."""
        return Sent(batches=self._batches, dropped=min(self._dropped, MAX_COUNT))

    @property
    def progress_age_s(self) -> float:
        """Seconds since the trainer last finished a step or changed its state."""
        return max(0.0, (time.monotonic_ns() - self.latest.progress_ns) / 1e9)

    def take(self, samples: Samples) -> bool:
        """Take a report and return whether the trainer's state has changed."""
        changed = samples.state != self.latest.state
        self.latest = samples
        self._rows += samples.rows
        excess = len(self._rows) - _MAX_WAITING_ROWS
        if excess > 0:
            self._dropped += excess
            del self._rows[:excess]
        return changed

    def drop(self) -> None:
        """Drop and count waiting samples: there is no broker."""
        self._dropped += len(self._rows)
        self._rows.clear()

    def batches(self, gauges: Mapping[str, float]) -> list[Telemetry]:
        """Return all waiting samples, in at least one batch, each within the size limit."""
        last = closing_row(self._rows, gauges, time.time_ns())
        rows = [*self._rows[:-1], last] if last[1] else []
        self._rows.clear()
        width = min(max((len(row) for _, row in rows), default=0), MAX_METRICS)
        height = max(1, MAX_BATCH_BYTES // (8 + 8 * width))
        parts = [rows[start : start + height] for start in range(0, len(rows), height)] or [[]]
        return [self._batch(part) for part in parts]

    def _batch(self, rows: Sequence[Row]) -> Telemetry:
        metrics, ts_ns, values = columns(rows)
        batch = Telemetry(
            run=self._hello.run,
            worker=self._hello.worker,
            incarnation=self._hello.incarnation,
            seq=self._batches,
            state=self.latest.state,
            step=self.latest.step,
            progress_age_s=min(self.progress_age_s, _LONGEST_AGE_S),
            dropped=min(self.latest.dropped + self._dropped, MAX_COUNT),
            metrics=metrics,
            ts_ns=ts_ns,
            values=values,
        )
        self._batches = min(self._batches + 1, MAX_COUNT)
        return batch
