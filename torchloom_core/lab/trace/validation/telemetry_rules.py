"""The rules for the telemetry of a bundle; :mod:`validate` and the importers check it in parts."""

from collections.abc import Callable, Iterator, Set
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import TELEMETRY_COLUMNS
from torchloom_core.lab.trace.bundle.telemetry import PART_ROWS, conform, opened

Progress = Callable[[Path, int, int], None]
"""Called with a file, its rows checked so far, and all its rows."""

_Rows = NDArray[np.bool_]


class TelemetryRules:
    """Checks files in order; reports the first row that breaks a rule, and counts the others.

    Parameters
    ----------
    start_ns, end_ns : int
        The span of the trace.
    components : set of str, optional
        Their ids; None without a topology.
    """

    def __init__(self, start_ns: int, end_ns: int, components: Set[str] | None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._components = components
        self._last_ns: int | None = None
        self.rows = 0

    def faults(self, path: Path, progress: Progress) -> Iterator[str]:
        """Yield the faults of a file, with file and row."""
        first: dict[str, tuple[int, str]] = {}
        counts: dict[str, int] = {}
        done = 0
        try:
            with opened(path) as file:
                for batch in file.iter_batches(PART_ROWS):
                    table = conform(pa.Table.from_batches([batch]), str(path))
                    for rule, broken, was in self.broken(table):
                        row = int(broken.argmax())
                        first.setdefault(rule, (done + row + 1, was(row)))
                        counts[rule] = counts.get(rule, 0) + int(broken.sum())
                    done += table.num_rows
                    progress(path, done, file.metadata.num_rows)
        except TraceError as error:
            yield str(error)
        self.rows += done
        for rule, (row, value) in first.items():
            more = f", and {counts[rule] - 1} more rows" if counts[rule] > 1 else ""
            yield f"{path}:{row}: need {rule}, was {value}{more}"

    def broken(self, table: pa.Table) -> Iterator[tuple[str, _Rows, Callable[[int], str]]]:
        """Yield each broken rule, ``(rows,)`` where it is broken, and a row's value as text.

        A part with missing values is not checked any further.
        """
        missing = [name for name in TELEMETRY_COLUMNS if table[name].null_count]
        for name in missing:
            yield f"a value of {name}", table[name].is_null().to_numpy(), lambda _: "null"
        if table.num_rows and not missing:
            for rule, broken, was in self._broken_values(table):
                if broken.any():
                    yield rule, broken, was

    def _broken_values(self, table: pa.Table) -> Iterator[tuple[str, _Rows, Callable[[int], str]]]:
        t_event, t_avail = table["t_event"].to_numpy(), table["t_avail"].to_numpy()
        value, valid = table["value"].to_numpy(), table["valid"].to_numpy()
        before = np.concatenate([t_avail[:1], t_avail[:-1]])
        if self._last_ns is not None:
            before[0] = self._last_ns
        self._last_ns = int(t_avail[-1])
        yield "t_avail >= that of the row before", t_avail < before, _when(t_avail)
        yield "t_avail >= t_event", t_avail < t_event, _when(t_avail)
        span = f"in the span {moment_text(self._start_ns)} to {moment_text(self._end_ns)}"
        yield f"t_event {span}", ~self._within(t_event), _when(t_event)
        yield f"t_avail {span}", ~self._within(t_avail), _when(t_avail)
        yield "a finite value where valid", valid & ~np.isfinite(value), lambda row: str(value[row])
        if self._components is not None:
            unknown, named = _unknown(table["component"], self._components)
            yield "a component of the topology", unknown, lambda row: repr(named(row))

    def _within(self, ts_ns: NDArray[np.int64]) -> _Rows:
        inside: _Rows = (ts_ns >= self._start_ns) & (ts_ns <= self._end_ns)
        return inside


def _when(column: NDArray[np.int64]) -> Callable[[int], str]:
    return lambda row: moment_text(int(column[row]))


def _unknown(column: pa.ChunkedArray, known: Set[str]) -> tuple[_Rows, Callable[[int], str]]:
    names = [name for name in pc.unique(column).to_pylist() if name not in known]
    broken = pc.is_in(column, value_set=pa.array(names, pa.string())).to_numpy()
    return broken, lambda row: str(column[row].as_py())
