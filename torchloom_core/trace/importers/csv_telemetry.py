"""Telemetry of one's own, a column a metric or a row a value, as the long table of a bundle."""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from torchloom_core.errors import TraceError
from torchloom_core.trace.importers.cells import (
    FIRST_ROW,
    Ints,
    need_columns,
    numbers_of,
    read_table,
    rename,
    times_ns,
)
from torchloom_core.trace.importers.mapping import Telemetry, Times
from torchloom_core.trace.schema import TELEMETRY_COLUMNS
from torchloom_core.trace.telemetry import conform
from torchloom_core.trace.telemetry_rules import TelemetryRules

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

    def check(self, start_ns: int, end_ns: int, components: Set[str] | None) -> None:
        """Raise a TraceError at a row that breaks a rule of telemetry."""
        rules = TelemetryRules(start_ns, end_ns, components)
        for rule, broken, was in rules.broken(self.table):
            at = int(np.flatnonzero(broken)[np.argmin(self.rows[broken])])
            raise TraceError(f"{self.path}:{self.rows[at]}: need {rule}, was {was(at)}")


def read_telemetry(folder: Path, plan: Telemetry, times: Times) -> LongTable:
    """Return the telemetry of a mapping, read whole; what is not a finite number is not valid."""
    path = folder / plan.file
    known = TELEMETRY_COLUMNS if plan.layout == "long" else _WHERE
    table = rename(read_table(path), plan.columns, known, path)
    need_columns(table, ("t_event", "component"), path)
    moments = pd.DataFrame(index=table.index)
    moments["t_event"] = times_ns(table["t_event"], times, path)
    avail = "t_avail" if "t_avail" in table.columns else "t_event"
    moments["t_avail"] = times_ns(table[avail], times, path)
    moments["component"] = table["component"].astype(str)
    moments["row"] = table.index + FIRST_ROW
    is_long = plan.layout == "long"
    long = _long(table, moments, path) if is_long else _melt(table, moments, plan, path)
    long["valid"] &= np.isfinite(long["value"])
    long = long.sort_values(["t_avail", "t_event", "row"], kind="stable", ignore_index=True)
    rows = long.pop("row").to_numpy()
    # Of a Series pyarrow would make NaN null; of an array it does not.
    value = pa.array(long.pop("value").to_numpy())
    whole = pa.Table.from_pandas(long, preserve_index=False).append_column("value", value)
    return LongTable(path, conform(whole, str(path)), rows)


def _long(table: pd.DataFrame, moments: pd.DataFrame, path: Path) -> pd.DataFrame:
    need_columns(table, ("metric", "value"), path)
    extra = [name for name in table.columns if name not in TELEMETRY_COLUMNS]
    long = moments.assign(
        metric=table["metric"].astype(str), value=numbers_of(table["value"], path)
    )
    valid = table["valid"].astype(str).str.lower() if "valid" in table else None
    long["valid"] = True if valid is None else valid.isin(["true", "1"])
    return long.join(table[extra])


def _melt(table: pd.DataFrame, moments: pd.DataFrame, plan: Telemetry, path: Path) -> pd.DataFrame:
    metrics = list(plan.metrics) or [name for name in table.columns if name not in _WHERE]
    need_columns(table, metrics, path)
    if not metrics:
        raise TraceError(f"{path}:1: need a column that is a metric, was none")
    values = pd.DataFrame({name: numbers_of(table[name], path) for name in metrics}, table.index)
    long = moments.join(values).melt([*_WHERE, "row"], metrics, "metric", "value")
    return long.assign(valid=True)
