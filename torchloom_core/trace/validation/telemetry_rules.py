"""What the telemetry of a bundle must keep; :mod:`validate` asks, a part at a time."""

from collections.abc import Callable, Iterator, Set
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from torchloom_core.clock import moment_text
from torchloom_core.errors import TraceError
from torchloom_core.trace.bundle.schema import TELEMETRY_COLUMNS
from torchloom_core.trace.bundle.telemetry import PART_ROWS, conform, opened

Heard = Callable[[Path, int, int], None]
"""Told of a file, how many rows of it are done, and how many it has."""

_Rows = NDArray[np.bool_]


class TelemetryRules:
    """Checks files in their order; of one rule broken many times in a file only the first row.

    Parameters
    ----------
    start_ns, end_ns : int
        The span in which everything happens.
    components : set of str, optional
        Those that are known; None without a topology.
    """

    def __init__(self, start_ns: int, end_ns: int, components: Set[str] | None) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._components = components
        self._last_ns: int | None = None
        self.rows = 0

    def faults(self, path: Path, heard: Heard) -> Iterator[str]:
        """Yield what is wrong with a file, each with file and row."""
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
                    heard(path, done, file.metadata.num_rows)
        except TraceError as error:
            yield str(error)
        self.rows += done
        for rule, (row, value) in first.items():
            more = f", and {counts[rule] - 1} rows more" if counts[rule] > 1 else ""
            yield f"{path}:{row}: need {rule}, was {value}{more}"

    def broken(self, table: pa.Table) -> Iterator[tuple[str, _Rows, Callable[[int], str]]]:
        """Yield each broken rule, ``(rows,)`` where it is broken, and what to say of a row.

        Where something is missing, the rest of the part can only be judged once it is there.
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
