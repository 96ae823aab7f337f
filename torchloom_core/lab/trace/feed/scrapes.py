"""Resample a trace's telemetry to one sample per tick and watched component.

:class:`~torchloom_core.lab.trace.feed.feed.Feed` calls it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Floats, Ints
from torchloom_core.lab.trace.bundle.bundle import Bundle
from torchloom_core.lab.trace.bundle.schema import TELEMETRY
from torchloom_core.lab.trace.bundle.telemetry import codes, numbers
from torchloom_core.lab.trace.feed.watched import Watched


class Scrapes:
    """Telemetry after ``start_ns`` of at least one metric, read forward once, in parts.

    At the start of the bundle, telemetry of that very moment is included. ``places`` is the largest
    number of values that :meth:`until` handles per metric and moment.
    """

    def __init__(
        self, bundle: Bundle, watched: Watched, metrics: Sequence[str], *, start_ns: int
    ) -> None:
        self._column_of = {metric: column for column, metric in enumerate(metrics)}
        self._parts = _Parts(bundle, watched)
        self.places = self._parts.pairs
        # Without a filter there is one copy less.
        is_whole = start_ns <= bundle.manifest.start_ns
        wanted = None if set(metrics) == set(bundle.metrics) else metrics
        tables = bundle.telemetry(None if is_whole else start_ns + 1, None, wanted)
        self._chunks = (
            _Chunk(table, self._parts, self._column_of) for table in _in_order(tables, bundle)
        )
        self._chunk = next(self._chunks, None)
        self._at = 0

    def until(self, moments_ns: Ints) -> tuple[Floats, NDArray[np.bool_]]:
        """Return the telemetry that arrived by each moment, and after the one before.

        Moments are sorted; the first covers all telemetry since the last call.

        Returns
        -------
        values : (metrics, ticks, watched) float64
            The last valid value, NaN without one. If a component and its parts report the same
            metric, the maximum; a metric of a rack or a switch applies to everything under it.
        reported : (ticks, watched) bool
            Whether the component or one of its parts sent anything, valid or not.
        """
        places = (len(moments_ns), len(self._parts))
        newest: Floats = np.full((len(self._column_of), *places), np.nan)
        seen = np.zeros(places, dtype=np.bool_)
        cells, by_tick = newest.reshape(-1), seen.reshape(-1)
        while self._chunk is not None:
            chunk = self._chunk
            end = int(np.searchsorted(chunk.t_avail, moments_ns[-1], side="right"))
            rows = slice(self._at, end)
            tick = np.searchsorted(moments_ns, chunk.t_avail[rows])
            place = tick * len(self._parts) + chunk.part[rows]
            by_tick[place] = True
            cell, valid = place + chunk.column[rows] * seen.size, chunk.valid[rows]
            # For repeated indices numpy stores the last value, which is the newest.
            cells[cell[valid]] = chunk.values[rows][valid]
            self._at = end
            if end < len(chunk.t_avail):
                break
            self._chunk, self._at = next(self._chunks, None), 0
        return self._parts.gather(newest, seen)


class _Chunk:
    """Rows of known components as numbers, sorted by ``t_avail``; only finite ones are valid."""

    def __init__(self, table: Any, parts: "_Parts", column_of: dict[str, int]) -> None:
        part = codes(table["component"], parts.number)
        column = codes(table["metric"], column_of)
        are_known: NDArray[np.bool_] = (part >= 0) & (column >= 0)
        known = slice(None) if are_known.all() else are_known  # a slice does not copy
        self.t_avail: Ints = numbers(table["t_avail"])[known]
        self.values: Floats = numbers(table["value"])[known]
        self.valid: NDArray[np.bool_] = numbers(table["valid"])[known] & np.isfinite(self.values)
        self.part, self.column = part[known], column[known]


class _Parts:
    """Every component with telemetry, by number, and the ``pairs`` with rows that it applies to."""

    def __init__(self, bundle: Bundle, watched: Watched) -> None:
        names = sorted({*watched.ids, *bundle.measured})
        rows_of = {name: rows for name in names if (rows := watched.rows_of(name))}
        self.number = {name: number for number, name in enumerate(rows_of)}
        pairs = sorted(
            (row, number, len(rows) == 1)
            for number, rows in enumerate(rows_of.values())
            for row in rows
        )
        self.pairs = len(pairs)
        self._row = np.array([pair[0] for pair in pairs], dtype=np.intp)
        self._part = np.array([pair[1] for pair in pairs], dtype=np.intp)
        self._own = np.array([pair[2] for pair in pairs], dtype=np.bool_)
        self._is_each_its_own = all(part == (row, row, True) for row, part in enumerate(pairs))
        # Every watched component is one of the names, so every row has a pair.
        self._starts = np.searchsorted(self._row, np.arange(len(watched.ids)))

    def __len__(self) -> int:
        return len(self.number)

    def gather(self, newest: Floats, seen: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
        """Aggregate ``(metrics, ticks, parts)`` and ``(ticks, parts)`` to watched rows."""
        if self._is_each_its_own:
            return newest, seen
        # take() puts the parts of a row side by side: fmax is fast, and its choice between 0 and
        # -0 does not depend on the number of ticks.
        values = np.fmax.reduceat(newest.take(self._part, axis=-1), self._starts, axis=-1)
        reported = np.logical_or.reduceat(seen[:, self._part] & self._own, self._starts, axis=-1)
        return values, reported


def _in_order(tables: Iterator[Any], bundle: Bundle) -> Iterator[Any]:
    """Yield the tables; TraceError if ``t_avail`` goes back or is before ``t_event``."""
    last_ns = int(np.iinfo(np.int64).min)
    for table in tables:
        t_event, t_avail = numbers(table["t_event"]), numbers(table["t_avail"])
        before = np.concatenate([[last_ns], t_avail[:-1]])
        for rule, floor in (("that of the row before,", before), ("t_event", t_event)):
            early = t_avail < floor
            if early.any():
                row = int(early.argmax())
                raise TraceError(
                    f"{bundle.path / TELEMETRY}: need t_avail >= {rule} "
                    f"{moment_text(int(floor[row]))}, was {moment_text(int(t_avail[row]))}; "
                    f"`torchloom trace validate` shows where"
                )
        last_ns = int(t_avail[-1])
        yield table
