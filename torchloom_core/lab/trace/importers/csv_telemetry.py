"""Import telemetry from a user's table, one column per metric or one row per value.

The file is read in parts, and only numbers stay in memory: names become codes.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import TELEMETRY_COLUMNS
from torchloom_core.lab.trace.bundle.telemetry import telemetry_table
from torchloom_core.lab.trace.importers.cells import (
    FIRST_ROW,
    Floats,
    Ints,
    need_cells,
    need_columns,
    numbers_of,
    rename,
    times_ns,
    truths_of,
    warn_mistyped,
)
from torchloom_core.lab.trace.importers.faults import SHOWN, Faults
from torchloom_core.lab.trace.importers.mapping import Csv, Mapping, Telemetry
from torchloom_core.lab.trace.importers.tables import read_parts
from torchloom_core.lab.trace.validation.rules import TelemetryRules

_WHERE = ("t_event", "t_avail", "component")
_TABLE_VALUES = 1 << 18

Codes = NDArray[np.int32]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TableTelemetry:
    """The rows of a telemetry table, in the order of the file: ``rows`` are their numbers there.

    ``component`` is ``(rows,)`` indices into ``components``, ``metric`` ``(rows, 1)`` or
    ``(width,)`` indices into ``metrics``; ``value`` and ``valid`` are ``(rows, width)``; ``extra``
    has the unknown columns.
    """

    path: Path
    rows: Ints
    t_event: Ints
    t_avail: Ints
    component: Codes
    metric: Codes
    value: Floats
    valid: Bools
    components: tuple[str, ...]
    metrics: tuple[str, ...]
    extra: dict[str, pa.ChunkedArray]

    @property
    def span(self) -> tuple[int, ...]:
        """First and last time of each time column; () if the table is empty."""
        moments = (self.t_event, self.t_avail)
        return tuple(int(edge) for ns in moments if len(ns) for edge in (ns.min(), ns.max()))

    @property
    def every_ns(self) -> int:
        """Median time between two rows of a component; 0 if no component has two."""
        order = np.lexsort((self.t_event, self.component))
        gaps = np.diff(self.t_event[order])[np.diff(self.component[order]) == 0]
        gaps = gaps[gaps > 0]
        return int(np.median(gaps)) if len(gaps) else 0

    def within(self, start_ns: int | None, end_ns: int | None) -> "tuple[TableTelemetry, Ints]":
        """Return the telemetry in a span, and the row numbers outside it."""
        inside = np.ones(len(self.rows), dtype=np.bool_)
        if start_ns is not None:
            inside &= self.t_event >= start_ns
        if end_ns is not None:
            inside &= self.t_avail <= end_ns
        names = ("rows", "t_event", "t_avail", "component", "value", "valid")
        left = replace(
            self,
            **{name: getattr(self, name)[inside] for name in names},
            metric=self.metric[inside] if self.metric.ndim > 1 else self.metric,
            extra={name: cells.filter(pa.array(inside)) for name, cells in self.extra.items()},
        )
        return left, self.rows[~inside]

    def check(self, rules: TelemetryRules, faults: Faults) -> None:
        """Add a fault for each row of the file that breaks a telemetry rule."""
        for at in self._in_order():
            numbers = np.repeat(self.rows[at], self.value.shape[1])
            for rule, broken, was in rules.broken(self._table(at)):
                rows, first = np.unique(numbers[broken], return_index=True)
                places = dict(
                    zip(rows.tolist(), np.flatnonzero(broken)[first].tolist(), strict=True)
                )
                texts = {row: f"need {rule}, was {was(places[row])}" for row in [*places][:SHOWN]}
                faults.add_all(self.path, places, texts.__getitem__)

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables with one row per value, sorted as in a bundle."""
        return map(self._table, self._in_order())

    def _in_order(self) -> Iterator[NDArray[np.intp]]:
        """Yield row indices by ``t_avail``, then ``t_event``, in parts."""
        order = np.lexsort((self.t_event, self.t_avail))
        step = max(1, _TABLE_VALUES // self.value.shape[1])
        for at in range(0, len(order), step):
            yield order[at : at + step]

    def _table(self, at: NDArray[np.intp]) -> pa.Table:
        width = self.value.shape[1]
        metric = self.metric[at] if self.metric.ndim > 1 else np.tile(self.metric, len(at))
        table = telemetry_table(
            self.t_event[at].repeat(width),
            self.t_avail[at].repeat(width),
            (self.component[at].repeat(width), self.components),
            (metric.ravel(), self.metrics),
            self.value[at].ravel(),
            self.valid[at].ravel(),
        )
        for name, cells in self.extra.items():
            table = table.append_column(name, cells.take(pa.array(at)))
        return table


def read_telemetry(
    folder: Path, mapping: Mapping, plan: Telemetry, faults: Faults
) -> TableTelemetry:
    """Read the telemetry table of a mapping; values that are not finite are not valid."""
    path = folder / plan.file
    is_long = plan.layout == "long"
    parts = _Parts()
    for number, part in enumerate(read_parts(path, mapping.csv, faults)):
        table = rename(part, plan.columns, TELEMETRY_COLUMNS if is_long else _WHERE, path)
        need_columns(table, ("t_event", "component"), path)
        need_cells(table, ["component"], path, faults)
        parts.of["rows"].append(table.index.to_numpy(np.int64) + FIRST_ROW)
        parts.of["t_event"].append(times_ns(table["t_event"], mapping, path, faults))
        if "t_avail" in table.columns:
            parts.of["t_avail"].append(times_ns(table["t_avail"], mapping, path, faults))
        parts.of["component"].append(parts.components.codes(table["component"]))
        if is_long:
            _add_long(table, mapping.csv, parts, path, faults)
            if number == 0:
                warn_mistyped(table, TELEMETRY_COLUMNS, path)
        else:
            _add_wide(table, plan, mapping.csv, parts, path, faults)
    return parts.whole(path)


class _Names:
    """Assigns a code to each name."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, by code."""
        return tuple(self._codes)

    def codes(self, cells: "pd.Series[str]") -> Codes:
        """Return ``(cells,)`` codes; that of an empty cell is arbitrary, as it is refused."""
        places, names = pd.factorize(cells.astype(str), use_na_sentinel=False)
        codes = [self._codes.setdefault(str(name), len(self._codes)) for name in names]
        return np.array(codes, dtype=np.int32)[places]


class _Parts:
    """The arrays of the parts read so far, by column, and their codes of names."""

    def __init__(self) -> None:
        self.of: defaultdict[str, list[NDArray[Any]]] = defaultdict(list)
        self.extra: list[pd.DataFrame] = []
        self.components, self.metrics = _Names(), _Names()

    def whole(self, path: Path) -> TableTelemetry:
        """Join and release the parts; without its column, ``t_avail`` is ``t_event``."""
        frame = pd.concat(self.extra) if self.extra else pd.DataFrame()
        extra = pa.Table.from_pandas(frame, preserve_index=False)
        columns = {name: np.concatenate(self.of.pop(name)) for name in [*self.of]}
        columns["valid"] &= np.isfinite(columns["value"])
        return TableTelemetry(
            **{"t_avail": columns["t_event"], **columns},
            path=path,
            components=self.components.names,
            metrics=self.metrics.names,
            extra=dict(zip(extra.column_names, extra.columns, strict=True)),
        )


def _add_long(table: pd.DataFrame, csv: Csv, parts: _Parts, path: Path, faults: Faults) -> None:
    need_columns(table, ("metric", "value"), path)
    need_cells(table, ["metric"], path, faults)
    parts.of["metric"].append(parts.metrics.codes(table["metric"])[:, np.newaxis])
    parts.of["value"].append(numbers_of(table["value"], csv, path, faults)[:, np.newaxis])
    valid = np.ones((len(table), 1), dtype=np.bool_)
    if "valid" in table:
        valid[:, 0] = truths_of(table["valid"], path, faults)
    parts.of["valid"].append(valid)
    if extra := [name for name in table.columns if name not in TELEMETRY_COLUMNS]:
        parts.extra.append(table[extra])


def _add_wide(
    table: pd.DataFrame, plan: Telemetry, csv: Csv, parts: _Parts, path: Path, faults: Faults
) -> None:
    metrics = list(plan.metrics) or [name for name in table.columns if name not in _WHERE]
    need_columns(table, metrics, path)
    if not metrics:
        raise TraceError(f"{path}:1: need a metric column, was none")
    if {"metric", "value"} <= {*metrics} and _are_words(table["metric"]):
        raise TraceError(
            f"{path}:1: need telemetry.layout = 'long' in the mapping, as the column 'metric' "
            f"has names, was 'wide'"
        )
    if "metric" not in parts.of:
        parts.of["metric"].append(parts.metrics.codes(pd.Series(metrics)))
    parts.of["value"].append(
        np.column_stack([numbers_of(table[name], csv, path, faults) for name in metrics])
    )
    parts.of["valid"].append(np.ones((len(table), len(metrics)), dtype=np.bool_))


def _are_words(cells: "pd.Series[str]") -> bool:
    """Return whether some cells are not empty and none of those is a number."""
    filled = cells[cells.notna() & (cells != "")]
    return len(filled) > 0 and bool(pd.to_numeric(filled, errors="coerce").isna().all())
