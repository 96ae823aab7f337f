"""The rules for rows and telemetry of a bundle; :mod:`validate` and the importers check them.

A fault is one line, "need ..., was ..."; the caller adds file and row.
"""

from collections.abc import Callable, Iterable, Iterator, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.plain_text import printable
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.bundle.schema import (
    TELEMETRY_COLUMNS,
    ActionTaken,
    Component,
    Event,
    Job,
    Placement,
    Row,
)
from torchloom_core.lab.trace.bundle.telemetry import PART_ROWS, conform, opened


class Rules:
    """Checks each row by itself and against earlier ones; None where ids are not listed."""

    def __init__(
        self,
        start_ns: int,
        end_ns: int,
        *,
        components: Set[str] | None = None,
        jobs: Set[str] | None = None,
    ) -> None:
        self._start_ns = start_ns
        self._end_ns = end_ns
        self._components = components
        self._jobs = jobs
        self._ids: dict[type[Row], set[str]] = {}
        self._newest: dict[type[Row], int] = {}
        self._sits: dict[tuple[str, str, int], list[tuple[int, int | None]]] = {}

    def faults(self, row: Row) -> Iterator[str]:
        """Yield the faults of a row; pass rows in the order of the file."""
        if not isinstance(row, Placement):
            yield from self._id(row)
        match row:
            case Component():
                yield from _order("until_ns", row.until_ns, "from_ns", row.from_ns)
            case Event():
                yield from self._moment(row)
                yield from _order("t_resolved", row.t_resolved, "t_event", row.t_event)
            case ActionTaken():
                yield from self._moment(row)
                yield from _order("t_end", row.t_end, "t_event", row.t_event)
            case Job():
                yield from _order("end_ns", row.end_ns, "start_ns", row.start_ns)
                yield from _job_sizes(row)
            case Placement():
                yield from self._component(row.component)
                if self._jobs is not None and row.job not in self._jobs:
                    yield f"need a job of jobs.jsonl, was {row.job!r}"
                yield from _order("until_ns", row.until_ns, "from_ns", row.from_ns)
                yield from self._place(row)

    def _id(self, row: Component | Job | Event | ActionTaken) -> Iterator[str]:
        ids = self._ids.setdefault(type(row), set())
        if row.id in ids:
            yield f"need a unique id, was {shown(row.id)} again"
        ids.add(row.id)

    def _moment(self, row: Event | ActionTaken) -> Iterator[str]:
        yield from self._component(row.component)
        for name, ts_ns in (("t_event", row.t_event), ("t_avail", row.t_avail)):
            if not self._start_ns <= ts_ns <= self._end_ns:
                yield (
                    f"need {name} in the span {moment_text(self._start_ns)} to "
                    f"{moment_text(self._end_ns)}, was {moment_text(ts_ns)}"
                )
        yield from _order("t_avail", row.t_avail, "t_event", row.t_event)
        newest = self._newest.setdefault(type(row), row.t_event)
        if row.t_event < newest:
            yield (
                f"need t_event >= {moment_text(newest)} of an earlier row, was "
                f"{moment_text(row.t_event)}"
            )
        self._newest[type(row)] = max(newest, row.t_event)

    def _component(self, name: str) -> Iterator[str]:
        if self._components is not None and name not in self._components:
            yield f"need a component of the topology, was {shown(name)}"

    def _place(self, row: Placement) -> Iterator[str]:
        spans = self._sits.setdefault((row.job, row.group, row.rank), [])
        for from_ns, until_ns in spans:
            if _before(row.from_ns, until_ns) and _before(from_ns, row.until_ns):
                yield (
                    f"need one placement at a time for rank {row.rank} of group {row.group!r} of "
                    f"job {row.job!r}, was a second one from {moment_text(from_ns)}"
                )
                break
        spans.append((row.from_ns, row.until_ns))


def parent_faults(parts: Iterable[Component]) -> Iterator[tuple[int, str]]:
    """Yield ``(index, fault)`` for each missing parent, where first named, and for a cycle."""
    listed = list(parts)
    index_of = {part.id: index for index, part in enumerate(listed)}
    missing: dict[str, list[int]] = {}
    for index, part in enumerate(listed):
        for parent in dict.fromkeys(part.parents):
            if parent not in index_of:
                missing.setdefault(parent, []).append(index)
    for parent, indices in missing.items():
        named = f", named by {len(indices)} components" if len(indices) > 1 else ""
        yield (
            indices[0],
            f"need parents of the topology, was {parent!r}{named}; add a row for it, with its "
            f"kind: rack, node, switch",
        )
    try:
        TopologicalSorter({part.id: part.parents for part in listed}).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        shown = " > ".join(map(printable, circle))
        yield index_of[circle[0]], f"need parents without a cycle, was {shown}"


def _order(late: str, late_ns: int | None, early: str, early_ns: int | None) -> Iterator[str]:
    if late_ns is not None and early_ns is not None and late_ns < early_ns:
        yield f"need {late} >= {early} {moment_text(early_ns)}, was {moment_text(late_ns)}"


def _before(ts_ns: int, until_ns: int | None) -> bool:
    return until_ns is None or ts_ns < until_ns


def _job_sizes(job: Job) -> Iterator[str]:
    for name in ("groups", "nodes_per_group", "gpus_per_node"):
        if (size := getattr(job, name)) < 1:
            yield f"need {name} >= 1, was {size}"
    for name in ("step_s", "checkpoint_s", "restart_s"):
        if not getattr(job, name) >= 0:
            yield f"need {name} >= 0, was {getattr(job, name):g}"


Progress = Callable[[Path, int, int], None]
"""Called with a file, its rows checked so far, and all its rows."""

_Rows = NDArray[np.bool_]


class TelemetryRules:
    """Checks files in order; reports the first row that breaks a rule, and counts the others."""

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
