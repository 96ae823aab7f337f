"""Import Backblaze Hard Drive Data: one scrape of every drive's SMART values a day.

The folder holds Parquet files with ``date``, ``serial_number``, ``model``, ``failure`` and
``smart_<n>_raw``. Drives are the components.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import Component, Event
from torchloom_core.lab.trace.bundle.telemetry import telemetry_table
from torchloom_core.lab.trace.bundle.writer import DAY_NS, BundleWriter, refuse_to_replace

_RAW = re.compile(r"(smart_\d+)_raw")
_METRIC = re.compile(r"smart_\d+")
_COLUMNS = ("date", "serial_number", "model", "failure")
_FIXED = ("model", "capacity_bytes")


def import_backblaze(folder: Path, out: Path, *, name: str = "", force: bool = False) -> None:
    """Import Backblaze Hard Drive Data, daily SMART values and drive failures, as a bundle.

    A day's values become available at its end. A drive that failed ends with that day; a drive
    that disappears without a failure ends with its last day of data. Metrics are named
    smart_5 and so on and are raw values, not normalised ones.

    Parameters
    ----------
    folder : Path
        Folder with the Parquet files.
    out : Path
        Bundle to write, NAME.tltrace.
    name : str
        Name of the trace. Default: the name of OUT.

    Raises
    ------
    TraceError
        If there is no file, a file cannot be read or lacks a column, or a drive has two rows
        for one day.
    """
    refuse_to_replace(out, force=force)
    days = _read(folder)
    start_ns = int(days["day_ns"].min())
    end_ns = int(days["day_ns"].max()) + DAY_NS
    with BundleWriter(
        out,
        name=name or out.stem,
        start_ns=start_ns,
        end_ns=end_ns,
        source="Backblaze Hard Drive Data",
        licence="cite Backblaze as the source; free to use, not to be sold",
        synthetic=False,
        notes="One scrape a day; t_event is its day's start, t_avail its day's end.",
        force=force,
    ) as bundle:
        for drive in _drives(days, start_ns, end_ns):
            bundle.add(drive)
        for event in _failures(days):
            bundle.add(event)
        for _, day in days.groupby("day_ns", sort=True):
            bundle.telemetry(_telemetry(day))


def _read(folder: Path) -> pd.DataFrame:
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise TraceError(f"{folder}: need Parquet files, was none")
    days = pd.concat([_read_file(path) for path in paths], ignore_index=True)
    if not any(_METRIC.fullmatch(name) for name in days.columns):
        raise TraceError(f"{folder}: need a column such as smart_5_raw, was none")
    days = days.sort_values(["day_ns", "serial_number"], kind="stable", ignore_index=True)
    if (twice := days.duplicated(["day_ns", "serial_number"])).any():
        row = days[twice].iloc[0]
        raise TraceError(
            f"{folder}: need one row per drive and day, was a second row of "
            f"{row['serial_number']} on {row['date']:%Y-%m-%d}"
        )
    return days


def _read_file(path: Path) -> pd.DataFrame:
    try:
        names = pq.read_schema(path).names
        raw = [name for name in names if _RAW.fullmatch(name)]
        for column in _COLUMNS:
            if column not in names:
                raise TraceError(f"{path}: need a column {column!r}, was none")
        columns = [*dict.fromkeys([*_COLUMNS, *(name for name in _FIXED if name in names), *raw])]
        days: pd.DataFrame = pq.read_table(path, columns=columns).to_pandas()
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise TraceError(f"{path}: need a complete Parquet file: {reason}") from None
    for column in _COLUMNS:
        if (missing := days[column].isna()).any():
            row = int(missing.to_numpy().argmax()) + 1
            raise TraceError(f"{path}:{row}: need a {column}, was none")
    days["date"] = _dates(days["date"], path)
    days["day_ns"] = days["date"].dt.normalize().astype("datetime64[ns]").astype(np.int64)
    for name in ("failure", *raw):
        days[name] = _numbers(days[name], path)
    days = days.astype({"serial_number": str, "model": str})
    return days.rename(columns={name: name.removesuffix("_raw") for name in raw})


def _dates(cells: "pd.Series[Any]", path: Path) -> "pd.Series[pd.Timestamp]":
    if pd.api.types.is_numeric_dtype(cells.dtype):
        raise TraceError(f"{path}: need dates in date, was {cells.dtype}")
    dates = pd.to_datetime(cells, errors="coerce", utc=True).dt.tz_localize(None)
    _refuse(~dates.dt.year.between(1678, 2261), "a date in the years 1678 to 2261", cells, path)
    return dates


def _numbers(cells: "pd.Series[Any]", path: Path) -> "pd.Series[float]":
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells
    numbers = pd.to_numeric(cells, errors="coerce")
    _refuse(numbers.isna() & cells.notna(), f"a number in {cells.name}", cells, path)
    return numbers


def _refuse(wrong: "pd.Series[bool]", rule: str, cells: "pd.Series[Any]", path: Path) -> None:
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise TraceError(f"{path}:{row + 1}: need {rule}, was {str(cells.iloc[row])!r}")


def _drives(days: pd.DataFrame, start_ns: int, end_ns: int) -> Iterator[Component]:
    """Yield the drives, sorted, each with its first and last day of data."""
    rows = days.groupby("serial_number", sort=True)
    first, last = rows["day_ns"].min(), rows["day_ns"].max() + DAY_NS
    extra = rows[[name for name in _FIXED if name in days]].first().to_dict("records")
    for name, from_ns, until_ns, cells in zip(first.index, first, last, extra, strict=True):
        yield Component(
            id=str(name),
            kind="disk",
            from_ns=None if from_ns == start_ns else int(from_ns),
            until_ns=None if until_ns == end_ns else int(until_ns),
            extra={str(column): value for column, value in cells.items()},
        )


def _failures(days: pd.DataFrame) -> Iterator[Event]:
    failed = days[days["failure"] == 1]
    ends = (failed["day_ns"] + DAY_NS).tolist()
    for number, (drive, end_ns) in enumerate(zip(failed["serial_number"], ends, strict=True), 1):
        yield Event(
            id=f"failure-{number:04}",
            t_event=end_ns,
            t_avail=end_ns,
            component=str(drive),
            kind="disk_failure",
            follows="component",
        )


def _telemetry(day: pd.DataFrame) -> pa.Table:
    """Return one day's scrape, ``(drives x metrics,)`` rows, drive by drive."""
    metrics = [name for name in day.columns if _METRIC.fullmatch(name)]
    values = day[metrics].to_numpy(dtype=np.float64, na_value=np.nan)
    drives = len(day)
    codes = np.repeat(np.arange(drives), len(metrics))
    kinds = np.tile(np.arange(len(metrics)), drives)
    t_event = np.full(values.size, int(day["day_ns"].iloc[0]))
    names = day["serial_number"].tolist()
    return telemetry_table(
        t_event, t_event + DAY_NS, (codes, names), (kinds, metrics), values.ravel()
    )
