"""What the trainer reports, in batches of columns, and what it does now."""

import math
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchloom_core.wire.limits import MAX_COUNT, MAX_METRICS
from torchloom_core.wire.messages import FieldValue, Hello, Telemetry
from torchloom_threadlet.cleaning import sendable
from torchloom_threadlet.ipc import COMPUTE, Phase, Samples, Sent

MAX_BATCH_BYTES = 256 << 10
_MAX_WAITING_ROWS = 20_000
_LONGEST_AGE_S = 1e9

Row = tuple[int, Mapping[str, float]]
_FRESH_NS = 3_000_000_000


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

    def drop(self, before_ns: int | None = None) -> None:
        """Drop and count the waiting samples taken before a time; None: all."""
        kept = [row for row in self._rows if before_ns is not None and row[0] >= before_ns]
        self._dropped += len(self._rows) - len(kept)
        self._rows = kept

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


def is_stopped(pid: int) -> bool | None:
    """Return whether the process is stopped, by SIGSTOP or a debugger; None if unknown."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return None
    return state in "Tt"


def gauges(pid: int, latest: Samples, now_ns: int) -> dict[str, float]:
    """Return ``trainer_waiting_s``, ``trainer_stopped`` and ``quorum_id``, as far as known.

    The quorum is in each step's metrics as well, but a hanging trainer finishes no step. In a
    named phase ``trainer_phase_left_s`` is the rest of its bound, negative once that is over.
    """
    values: dict[str, float] = {}
    phase = phase_of(latest, now_ns)
    if phase is not None:
        waits = phase.name != COMPUTE
        values["trainer_waiting_s"] = (now_ns - phase.since_ns) / 1e9 if waits else 0.0
        values["quorum_id"] = float(phase.quorum_id)
    stopped = is_stopped(pid)
    if stopped is not None:
        values["trainer_stopped"] = float(stopped)
    if latest.named is not None:
        values["trainer_phase_left_s"] = phase_left_s(latest, now_ns)
    return values


def phase_fields(pid: int, latest: Samples, now_ns: int) -> dict[str, FieldValue]:
    """Return the phase as fields of a note, with the quorum."""
    phase = phase_of(latest, now_ns)
    fields: dict[str, FieldValue] = {} if phase is None else phase.fields(now_ns)
    return {**fields, "phase": "stopped"} if is_stopped(pid) else fields


def phase_left_s(latest: Samples, now_ns: int) -> float:
    """Return how much of the named phase's bound is left, in seconds; 0 outside a named phase."""
    return (latest.named.until_ns - now_ns) / 1e9 if latest.named is not None else 0.0


def phase_of(latest: Samples, now_ns: int) -> Phase | None:
    """Return the trainer's phase; a wait without recent confirmation counts as over."""
    phase = latest.phase
    if phase is None or phase.name == COMPUTE or now_ns - latest.looked_ns <= _FRESH_NS:
        return phase
    return Phase(name=COMPUTE, since_ns=latest.looked_ns, quorum_id=phase.quorum_id)
