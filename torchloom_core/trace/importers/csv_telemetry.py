"""Telemetry of one's own, a column a metric or a row a value, as the long table of a bundle."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from torchloom_core.errors import TraceError
from torchloom_core.trace.bundle.schema import TELEMETRY_COLUMNS
from torchloom_core.trace.bundle.telemetry import conform
from torchloom_core.trace.importers.cells import (
    FIRST_ROW,
    Ints,
    need_cells,
    need_columns,
    numbers_of,
    read_table,
    rename,
    tell_mistyped,
    times_ns,
)
from torchloom_core.trace.importers.faults import TOLD, Faults
from torchloom_core.trace.importers.mapping import Telemetry, Times
from torchloom_core.trace.validation.telemetry_rules import TelemetryRules

_WHERE = ("t_event", "t_avail", "component")


@dataclass(frozen=True)
class LongTable:
    """A row a value, sorted as in a bundle.

    Attributes
    ----------
    table : pa.Table
        Columns as in ``TELEMETRY_COLUMNS``, then unknown ones.
    rows : (rows,) int64
        Row of the file from which each came.
    """

    path: Path
    table: pa.Table
    rows: Ints

    @property
    def span(self) -> tuple[int, ...]:
        """First and last moment in it; () if it is empty."""
        moments = [self.table[name].to_numpy() for name in ("t_event", "t_avail")]
        return tuple(int(edge) for ns in moments if len(ns) for edge in (ns.min(), ns.max()))

    @property
    def every_ns(self) -> int:
        """Median time between two rows of a component; 0 if none has two."""
        names = self.table["component"].combine_chunks().indices.to_numpy()
        t_event = self.table["t_event"].to_numpy()
        order = np.lexsort((t_event, names))
        gaps = np.diff(t_event[order])[np.diff(names[order]) == 0]
        gaps = gaps[gaps > 0]
        return int(np.median(gaps)) if len(gaps) else 0

    def within(self, start_ns: int | None, end_ns: int | None) -> "tuple[LongTable, list[int]]":
        """Return what lies in a span, and the rows of the file that do not."""
        inside = np.ones(len(self.rows), dtype=np.bool_)
        if start_ns is not None:
            inside &= self.table["t_event"].to_numpy() >= start_ns
        if end_ns is not None:
            inside &= self.table["t_avail"].to_numpy() <= end_ns
        left = LongTable(self.path, self.table.filter(pa.array(inside)), self.rows[inside])
        return left, np.unique(self.rows[~inside]).tolist()

    def check(self, rules: TelemetryRules, faults: Faults) -> None:
        """Take a fault for each row of the file that breaks a rule of telemetry."""
        for rule, broken, was in rules.broken(self.table):
            rows, first = np.unique(self.rows[broken], return_index=True)
            at = dict(zip(rows.tolist(), np.flatnonzero(broken)[first].tolist(), strict=True))
            texts = {row: f"need {rule}, was {was(at[row])}" for row in [*at][:TOLD]}
            faults.add_all(self.path, at, texts.__getitem__)


def read_telemetry(folder: Path, plan: Telemetry, times: Times, faults: Faults) -> LongTable:
    """Return the telemetry of a mapping, read whole; what is not a finite number is not valid."""
    path = folder / plan.file
    known = TELEMETRY_COLUMNS if plan.layout == "long" else _WHERE
    table = rename(read_table(path), plan.columns, known, path)
    need_columns(table, ("t_event", "component"), path)
    need_cells(table, ["component"], path, faults)
    moments = pd.DataFrame(index=table.index)
    moments["t_event"] = moments["t_avail"] = times_ns(table["t_event"], times, path, faults)
    if "t_avail" in table.columns:
        moments["t_avail"] = times_ns(table["t_avail"], times, path, faults)
    moments["component"] = table["component"].astype(str)
    if plan.layout == "long":
        long = _long(table, moments, path, faults)
    else:
        long = _wide(table, moments, plan, path, faults)
    long["valid"] &= np.isfinite(long["value"])
    # The index, which no column of the table can be called by, says from which row each came.
    order = np.lexsort((long.index, long["t_event"], long["t_avail"]))
    rows = long.index.to_numpy(np.int64)[order] + FIRST_ROW
    long = long.iloc[order]
    # Of a Series pyarrow would make NaN null; of an array it does not.
    value = pa.array(long.pop("value").to_numpy())
    whole = pa.Table.from_pandas(long, preserve_index=False).append_column("value", value)
    return LongTable(path, conform(whole, str(path)), rows)


def _long(table: pd.DataFrame, moments: pd.DataFrame, path: Path, faults: Faults) -> pd.DataFrame:
    need_columns(table, ("metric", "value"), path)
    tell_mistyped(table, TELEMETRY_COLUMNS, path)
    need_cells(table, ["metric"], path, faults)
    extra = [name for name in table.columns if name not in TELEMETRY_COLUMNS]
    long = moments.assign(
        metric=table["metric"].astype(str), value=numbers_of(table["value"], path, faults)
    )
    valid = table["valid"].astype(str).str.lower() if "valid" in table else None
    long["valid"] = True if valid is None else valid.isin(["true", "1"])
    return long.join(table[extra])


def _wide(
    table: pd.DataFrame, moments: pd.DataFrame, plan: Telemetry, path: Path, faults: Faults
) -> pd.DataFrame:
    """Return the values metric by metric, each with the index of its row."""
    metrics = list(plan.metrics) or [name for name in table.columns if name not in _WHERE]
    need_columns(table, metrics, path)
    if not metrics:
        raise TraceError(f"{path}:1: need a column that is a metric, was none")
    long = moments.iloc[np.tile(np.arange(len(table)), len(metrics))]
    return long.assign(
        metric=np.repeat(np.array(metrics, dtype=object), len(table)),
        value=np.concatenate([numbers_of(table[name], path, faults) for name in metrics]),
        valid=True,
    )
