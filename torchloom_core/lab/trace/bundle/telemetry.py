"""Read one Parquet file of a trace bundle's telemetry, in parts of bounded size."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from torchloom_core.floor.errors import TraceError
from torchloom_core.interface.arrays import Ints
from torchloom_core.lab.trace.bundle.schema import TELEMETRY_COLUMNS

PART_ROWS = 1 << 18
"""Rows per part: smaller parts are slower and save no more memory."""

_NAMES = pa.dictionary(pa.int32(), pa.string())

TYPES = dict(
    zip(
        TELEMETRY_COLUMNS,
        (pa.int64(), pa.int64(), _NAMES, _NAMES, pa.float64(), pa.bool_()),
        strict=True,
    )
)
"""Column of the telemetry to its type."""


def telemetry_table(
    t_event: Ints,
    t_avail: Ints,
    component: tuple[NDArray[np.integer[Any]], Sequence[str]],
    metric: tuple[NDArray[np.integer[Any]], Sequence[str]],
    value: NDArray[np.float64],
    valid: NDArray[np.bool_] | None = None,
) -> pa.Table:
    """Return rows of telemetry from codes and the names that they index; finite ones are valid."""
    named = (
        pa.DictionaryArray.from_arrays(pa.array(code, pa.int32()), pa.array(names, pa.string()))
        for code, names in (component, metric)
    )
    columns = (t_event, t_avail, *named, value, np.isfinite(value) if valid is None else valid)
    return pa.table(dict(zip(TELEMETRY_COLUMNS, columns, strict=True)))


def parts(
    path: Path,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    metrics: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield rows with ``start_ns <= t_avail < end_ns``; row groups of other times are not read."""
    with opened(path) as file:
        for group in range(file.num_row_groups):
            if not _may_overlap(file, group, start_ns, end_ns):
                continue
            for batch in file.iter_batches(PART_ROWS, row_groups=[group]):
                table = conform(pa.Table.from_batches([batch]), str(path))
                _refuse_nulls(table, path)
                table = _chosen(table, start_ns, end_ns, metrics)
                if table.num_rows:
                    yield table


def names_in(path: Path, column: str) -> set[str]:
    """Return the distinct names in a column, ``component`` or ``metric``."""
    found: set[str] = set()
    for rows in _columns(path, column):
        found.update(pc.unique(rows[column]).to_pylist())
    return found


def _columns(path: Path, *names: str) -> Iterator[pa.Table]:
    """Yield some columns in parts, of their types and without nulls."""
    with opened(path) as file:
        for batch in file.iter_batches(PART_ROWS, columns=list(names)):
            rows = pa.Table.from_batches([batch])
            rows = pa.table({name: _typed(rows[name], name, str(path)) for name in names})
            _refuse_nulls(rows, path)
            yield rows


@contextmanager
def opened(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a telemetry file; TraceError, also while reading, if it is damaged or lacks a column."""
    try:
        names = pq.read_schema(path).names
        for column in TELEMETRY_COLUMNS:
            if column not in names:
                raise TraceError(f"{path}: need a column {column!r}, was none")
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise TraceError(f"{path}: need each column once, was {twice!r} twice")
        # pre_buffer would read the whole file before the first part.
        names_as_codes = ["component", "metric"]
        with pq.ParquetFile(path, read_dictionary=names_as_codes, pre_buffer=False) as file:
            yield file
    except (OSError, KeyError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise TraceError(f"{path}: need a complete Parquet file: {reason}") from None


def conform(table: pa.Table, place: str) -> pa.Table:
    """Return the table with the schema's columns first; TraceError if one cannot be its type."""
    columns = {}
    for name in TYPES:
        if name not in table.column_names:
            raise TraceError(f"{place}: need a column {name!r}, was none")
        columns[name] = _typed(table[name], name, place)
    for name in table.column_names:
        columns.setdefault(name, table[name])
    return pa.table(columns)


def _typed(column: pa.ChunkedArray, name: str, place: str) -> pa.ChunkedArray:
    kind = TYPES[name]
    try:
        return column if column.type == kind else _cast(column, kind)
    except pa.ArrowException:
        raise TraceError(
            f"{place}: need {name} of type {_plain(kind)}, was {_plain(column.type)}"
        ) from None


def _refuse_nulls(table: pa.Table, path: Path) -> None:
    for name in table.column_names:
        if name in TYPES and table[name].null_count:
            raise TraceError(
                f"{path}: need a value of {name}, was null; `torchloom trace validate` shows where"
            )


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind != _NAMES:
        return column.cast(kind)
    plain = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(plain) or pa.types.is_large_string(plain)):
        raise pa.ArrowTypeError(str(plain))
    return column.cast(pa.string()).dictionary_encode()


def _plain(kind: pa.DataType) -> str:
    return str(kind.value_type if pa.types.is_dictionary(kind) else kind)


def _may_overlap(
    file: pq.ParquetFile, group: int, start_ns: int | None, end_ns: int | None
) -> bool:
    column = file.metadata.row_group(group).column(file.metadata.schema.names.index("t_avail"))
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, int):
        return True  # another type, which is refused on reading unless it casts to int64
    return (end_ns is None or int(statistics.min) < end_ns) and (
        start_ns is None or int(statistics.max) >= start_ns
    )


def _chosen(
    table: pa.Table, start_ns: int | None, end_ns: int | None, metrics: Sequence[str] | None
) -> pa.Table:
    came_ns = numbers(table["t_avail"])
    wanted: NDArray[np.bool_] = np.ones(len(came_ns), dtype=np.bool_)
    if start_ns is not None:
        wanted &= came_ns >= start_ns
    if end_ns is not None:
        wanted &= came_ns < end_ns
    if metrics is not None:
        wanted &= codes(table["metric"], metrics) >= 0
    if wanted.all():
        return table
    bits = pa.py_buffer(np.packbits(wanted, bitorder="little"))
    return table.filter(pa.Array.from_buffers(pa.bool_(), len(wanted), [None, bits]))


def first_after(
    telemetry: Callable[[int], Iterable[pa.Table]], since: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return the next telemetry from each moment on; ``telemetry`` is called with the first."""
    waiting: dict[str, list[int]] = {}
    for name, ns in since:
        waiting.setdefault(name, []).append(ns)
    if not waiting:
        return {}
    found: dict[tuple[str, int], int] = {}
    for table in telemetry(min(ns for moments in waiting.values() for ns in moments)):
        names = sorted(waiting)
        part = codes(table["component"], names)
        order = np.argsort(part, kind="stable")
        edges = np.searchsorted(part[order], np.arange(len(names) + 1))
        came_ns = numbers(table["t_avail"])[order]
        for at in np.flatnonzero(np.diff(edges)).tolist():
            own_ns = came_ns[edges[at] : edges[at + 1]]
            moments = waiting.pop(names[at])
            after = np.searchsorted(own_ns, moments)
            for ns, index in zip(moments, after.tolist(), strict=True):
                if index < len(own_ns):
                    found[names[at], ns] = int(own_ns[index])
                else:
                    waiting.setdefault(names[at], []).append(ns)
        if not waiting:
            break
    return found


def steps_in(paths: Iterable[Path], components: Sequence[str], step_ns: int) -> tuple[Ints, Ints]:
    """Return the time steps in which each component sent telemetry.

    They are two arrays ``(pairs,)``: steps since the epoch, and index into ``components``; each
    pair once, sorted.
    """
    found = [np.zeros(0, dtype=np.int64)]
    for path in paths:
        for rows in _columns(path, "component", "t_avail"):
            step = numbers(rows["t_avail"]) // step_ns
            pair = step * len(components) + codes(rows["component"], components)
            found.append(distinct(pair))
    return np.divmod(distinct(np.concatenate(found)), max(1, len(components)))


def distinct(values: Ints) -> Ints:
    """Return the sorted distinct values: on large arrays several times as fast as ``np.unique``."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


def codes(column: pa.ChunkedArray, names: Collection[str]) -> Ints:
    """Return the index of each row's name in ``names``, -1 for other names."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    rows = column.unify_dictionaries().combine_chunks()
    place_of = {name: place for place, name in enumerate(names)}
    places = [place_of.get(name, -1) for name in rows.dictionary.to_pylist()]
    found: Ints = np.array(places, dtype=np.int64)[np.from_dlpack(rows.indices)]
    return found


def numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    """Return numbers or booleans without nulls; pyarrow's own conversions import pandas."""
    whole = column.combine_chunks()
    if pa.types.is_boolean(whole.type):
        return np.from_dlpack(whole.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(whole)
