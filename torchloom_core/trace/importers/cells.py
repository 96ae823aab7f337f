"""Cells of somebody's own table as what a bundle needs: times, numbers, renamed columns.

Row 1 is the header, so that rows count as the lines of the file do.
"""

import csv
import logging
import lzma
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from torchloom_core.clock import SECOND_NS
from torchloom_core.errors import ConfigError, TraceError
from torchloom_core.files import open_regular
from torchloom_core.plugin.foreign import shown
from torchloom_core.suggest import mistyped, nearest
from torchloom_core.trace.importers.faults import Faults
from torchloom_core.trace.importers.mapping import SHORT, Times

FIRST_ROW = 2
PART_ROWS = 1 << 16
"""Rows that are text at a time."""

UNREADABLE = (
    *(OSError, ValueError, csv.Error, pd.errors.ParserWarning, pa.ArrowException),
    *(RuntimeError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
)
"""What pandas raises of a table that is none, or was cut or damaged, compressed ones too."""

_log = logging.getLogger(__name__)

_UNIT_NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": SECOND_NS, "days": 86_400 * SECOND_NS}
_BEYOND_NS = float(2**63)

_FIRST, _LAST = (edge.tz_localize("UTC") for edge in (pd.Timestamp.min, pd.Timestamp.max))
_YEARS = "a time in the years 1678 to 2261"
_OF_TODAY = ("now", "today")
"""Texts that pandas takes for a time, which is another one each time."""

_NUMBER = r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*"
_DAY = r"\d{8}"
"""A number that is a time all the same, of ISO 8601's basic form: 20260104."""

_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "")
_OPEN_QUOTE = re.compile(r"EOF inside string starting at row (\d+)")

_RULE = {
    "iso8601": "an ISO 8601 time (or times.unit in a mapping)",
    "ns": "a number of nanoseconds",
    "us": "a number of microseconds",
    "ms": "a number of milliseconds",
    "s": "a number of seconds",
    "days": "a number of days",
}

_PLAIN: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_boolean,
    pa.types.is_timestamp,
    pa.types.is_date,
    pa.types.is_null,
)
"""Types of Parquet that have a text in a CSV file."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Wrong = NDArray[np.bool_]


def read_table(path: Path) -> pd.DataFrame:
    """Return a Parquet file, or a CSV file as text without blank rows, whose number stays.

    The index that pandas keeps with a Parquet file is a column like any other if it has a name.

    Raises
    ------
    TraceError
        If it cannot be read as such.
    """
    return pd.concat(read_parts(path))


def read_parts(path: Path) -> Iterator[pd.DataFrame]:
    """Yield what :func:`read_table` returns, some rows at a time: one part at the least."""
    try:
        with open_regular(path):
            pass
        if path.suffix == ".parquet":
            _refuse_unplain(path)
            table = pd.read_parquet(path)
            table = table.reset_index(drop=not any(table.index.names))
            for row in range(0, max(len(table), 1), PART_ROWS):
                yield table.iloc[row : row + PART_ROWS]
        else:
            yield from _csv_parts(path)
    except pd.errors.EmptyDataError:
        raise TraceError(f"{path}: need a header, was an empty file") from None
    except ImportError as error:
        name = error.name or getattr(error.__cause__, "name", None) or "what unpacks it"
        raise TraceError(f"{path}: cannot be read: {name} is not installed") from None
    except UNREADABLE as error:
        raise TraceError(f"{path}: cannot be read: {reason_of(error)}") from None


def _refuse_unplain(path: Path) -> None:
    """Raise TraceError for a column of a Parquet file that no CSV file could have."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for field in schema:
            if len(schema.get_all_field_indices(field.name)) > 1:
                raise TraceError(f"{path}:1: need each column once, was {field.name!r} again")
            kind = field.type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not any(is_plain(kind) for is_plain in _PLAIN):
                raise TraceError(
                    f"{path}:1: need columns of text, numbers, truth values or times, was "
                    f"{field.name!r} of {kind}"
                )
        for batch in file.iter_batches():
            batch.validate(full=True)  # as of text that is not UTF-8


def reason_of(error: Exception) -> str:
    """Return in one line why a table cannot be read, of an error of ``UNREADABLE``."""
    if isinstance(error, UnicodeDecodeError):
        return f"need UTF-8, was the byte {error.object[error.start]:#04x}"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    if opened := _OPEN_QUOTE.search(reason):  # rows are counted from 0 there
        return f"need a closing quote, was none from row {int(opened[1]) + 1} on"
    return reason or type(error).__name__


def _csv_parts(path: Path) -> Iterator[pd.DataFrame]:
    try:
        with pd.read_csv(
            path,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            index_col=False,
            chunksize=PART_ROWS,
        ) as parts:
            while (part := _next_of(parts)) is not None:
                table = part.fillna("")
                yield table[(table != "").any(axis="columns")]
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        with suppress(UnicodeDecodeError, csv.Error):  # not by csv, such as a compressed one
            _refuse_long_rows(path)
        raise


def _next_of(parts: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    with warnings.catch_warnings():
        # pandas only warns of cells that no column of the header is for, and drops them.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return next(parts, None)


def _refuse_long_rows(path: Path) -> None:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        header = next(rows)
        faults = Faults()
        for row in rows:
            if len(row) > len(header):
                text = f"need {len(header)} cells as in the header, was {len(row)}"
                faults.add(path, rows.line_num, text)
        faults.refuse()


def rename(
    table: pd.DataFrame,
    columns: Mapping[str, str],
    known: Iterable[str],
    place: Path,
) -> pd.DataFrame:
    """Return the table with its columns called as in a bundle, unknown ones as they were.

    Parameters
    ----------
    columns : mapping of str to str
        Column of the bundle, or the short name of ``SHORT`` for it, to that of the table.
    known : iterable of str
        Columns of the bundle.

    Raises
    ------
    ConfigError
        If the mapping names a column that a bundle does not have.
    TraceError
        If it names one that the table does not have.
    """
    known = sorted(known)
    long = {short: column for column, short in SHORT.items() if column in known}
    columns = {long.get(column, column): name for column, name in columns.items()}
    for column, name in columns.items():
        if column not in known:
            raise ConfigError(
                f"the mapping of {place}: a bundle has no column {column!r}{nearest(column, known)}"
            )
        if name not in table.columns:
            raise TraceError(
                f"{place}:1: need a column {name!r} for {column}, was none"
                f"{nearest(name, map(str, table.columns))}{uncut(table)}"
            )
        if column in table.columns and column not in columns.values():
            raise TraceError(
                f"{place}:1: need one column for {column}, was {name!r} by the mapping, and "
                f"{column!r}"
            )
    names = {name: column for column, name in columns.items()}
    for column in known:
        short = SHORT.get(column)
        if column not in {*columns, *table.columns} and short in {*table.columns} - {*names}:
            names[str(short)] = column
    return table.rename(columns=names)


def tell_mistyped(table: pd.DataFrame, known: Iterable[str], place: Path) -> None:
    """Say which columns of the renamed table a bundle keeps though a known one may be meant."""
    absent = set(known).difference(table.columns)
    absent |= {SHORT[column] for column in absent if column in SHORT}
    for name in table.columns:
        if name not in known and (meant := mistyped(str(name), absent)):
            _log.warning("%s:1: column %r is kept as it is; did you mean %r?", place, name, meant)


def need_columns(table: pd.DataFrame, columns: Iterable[str], place: Path) -> None:
    """Raise a TraceError for the first of ``columns`` that the renamed table lacks."""
    for column in columns:
        if column not in table.columns:
            named = f"{SHORT[column]!r}" if column in SHORT else f"{column!r}"
            raise TraceError(
                f"{place}:1: need a column {named} (or a mapping for it), was none{uncut(table)}"
            )


def uncut(table: pd.DataFrame) -> str:
    """Return that the header is one cell, where it looks as if it should be several."""
    header = str(table.columns[0]) if len(table.columns) == 1 else ""
    if not any(mark in header for mark in ";|\t"):
        return ""
    return f"; need commas between cells, was {shown(header)}"


def need_cells(table: pd.DataFrame, columns: Iterable[str], path: Path, faults: Faults) -> None:
    """Take a fault for each empty cell in ``columns`` of the renamed table."""
    for column in columns:
        cells = table[column]
        rule = repr(SHORT.get(column, column))
        _need(cells, (cells.isna() | (cells == "")).to_numpy(np.bool_), f"a {rule}", path, faults)


def times_ns(cells: "pd.Series[str]", times: Times, path: Path, faults: Faults) -> Ints:
    """Return times as nanoseconds since the Unix epoch; a cell that is no time is a fault.

    Numbers of which nobody said what they count are one fault, of the first: to pandas 1800 is a
    year.
    """
    numbers = np.zeros(len(cells), dtype=np.bool_)
    if times.unit == "iso8601":
        numbers = _numbers(cells)
        _refuse_numbers(cells, numbers, path, faults)
    moments, wrong, far = _parsed(
        cells.astype(object).mask(numbers) if numbers.any() else cells, times, path
    )
    _need(cells, wrong & ~numbers, _RULE[times.unit], path, faults)
    _need(cells, far, _YEARS, path, faults)
    return moments


def moment_ns(moment: str | float, times: Times, key: str) -> int:
    """Return one time that stands in a mapping; ConfigError, with its key, if it is none."""
    moments, wrong, far = _parsed(pd.Series([str(moment)]), times, key)
    if wrong[0] or far[0]:
        rule = _YEARS if far[0] else _RULE[times.unit]
        raise ConfigError(f"{key}: need {rule}, was {moment!r}")
    return int(moments[0])


def plain_cells(cells: "pd.Series[Any]") -> list[Any]:
    """Return cells as a CSV file would have them: times as ISO 8601, "" where there is none."""
    there = cells.notna()
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        cells = cells.map(lambda cell: cell.isoformat(), na_action="ignore").astype(object)
    return (cells if there.all() else cells.astype(object).where(there, "")).tolist()


def numbers_of(cells: "pd.Series[str]", path: Path, faults: Faults) -> Floats:
    """Return cells as float64, NaN where a cell is empty, 1 and 0 where it is true or false.

    One that is nothing of these is a fault.
    """
    numbers: Floats = pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    empty = (cells.isna() | cells.isin(["", "nan", "NaN", "NA", "null"])).to_numpy(np.bool_)
    odd = np.isnan(numbers) & ~empty
    if odd.any():
        numbers, texts = numbers.copy(), cells[odd].astype(str).str.lower()
        numbers[odd] = texts.map({"true": 1.0, "false": 0.0})
        _need(cells, odd & np.isnan(numbers), f"a number for {cells.name}", path, faults)
    return numbers


def truths_of(cells: "pd.Series[str]", path: Path, faults: Faults) -> NDArray[np.bool_]:
    """Return where a cell is true; one that is neither true nor false, nor empty, is a fault."""
    texts = cells.astype(str).str.lower()
    is_true = texts.isin(_TRUE).to_numpy(np.bool_)
    is_false = (texts.isin(_FALSE) | cells.isna()).to_numpy(np.bool_)
    _need(cells, ~is_true & ~is_false, f"true or false for {cells.name}", path, faults)
    return is_true


def iso_ns(cells: "pd.Series[str]") -> tuple[Ints, Wrong, Wrong]:
    """Return ``(cells,)`` nanoseconds, and where a cell is no time, or beyond what they reach."""
    dates = pd.to_datetime(cells, format="ISO8601", utc=True, errors="coerce")
    far = ((dates < _FIRST) | (dates > _LAST)).to_numpy(np.bool_)
    wrong = (dates.isna() | cells.isin(_OF_TODAY)).to_numpy(np.bool_)
    known = dates.mask(far) if far.any() else dates
    return known.dt.as_unit("ns").to_numpy("datetime64[ns]").astype(np.int64), wrong, far


def _parsed(cells: "pd.Series[str]", times: Times, place: Path | str) -> tuple[Ints, Wrong, Wrong]:
    """Return ``(cells,)`` nanoseconds, and where a cell is no time, or one of another age."""
    if times.unit == "iso8601":
        return iso_ns(cells)
    origin_ns, unit_ns = _origin_ns(times, place), _UNIT_NS[times.unit]
    numbers = pd.to_numeric(cells, errors="coerce")
    with np.errstate(over="ignore", invalid="ignore"):
        about_ns = np.abs(numbers.to_numpy(np.float64) * unit_ns + origin_ns)
    wrong, far = ~(about_ns < _BEYOND_NS), np.zeros(len(cells), dtype=np.bool_)
    # Sums of int64 go round: the year 1 is beyond them, but not days since then until today.
    origin_ns = (origin_ns + 2**63) % 2**64 - 2**63
    if pd.api.types.is_integer_dtype(numbers.dtype):
        return numbers.to_numpy(np.int64) * unit_ns + origin_ns, wrong, far
    # A float64 cannot tell nanoseconds in years: what it adds beyond a microsecond is noise.
    us = np.rint(np.where(wrong, 0, numbers.to_numpy(np.float64)) * (unit_ns / 1000))
    return us.astype(np.int64) * 1000 + origin_ns, wrong, far


def _numbers(cells: "pd.Series[str]") -> Wrong:
    """Say which cells are plain numbers, and no day in ISO 8601's basic form."""
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.notna().to_numpy(np.bool_)
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return np.zeros(len(cells), dtype=np.bool_)
    texts = cells.astype(str)
    numbers = texts.str.fullmatch(_NUMBER) & ~texts.str.fullmatch(_DAY)
    return numbers.to_numpy(np.bool_)


def _refuse_numbers(cells: "pd.Series[str]", numbers: Wrong, path: Path, faults: Faults) -> None:
    if not numbers.any():
        return
    first = int(numbers.argmax())
    was = str(cells.iloc[first])

    def text_of(more: int) -> str:
        rows = f" (and numbers in {more} rows more)" if more else ""
        return (
            f"need {_RULE['iso8601']}, was {shown(was)}{rows}: say what a number counts with "
            f'unit = "s" (or "days" or "ns") under [times] in a file for --map, and with origin '
            f"when it is 0"
        )

    rows = (cells.index[numbers] + FIRST_ROW).tolist()
    faults.add_first(path, str(cells.name), rows, text_of)


def _need(cells: "pd.Series[str]", wrong: Wrong, rule: str, path: Path, faults: Faults) -> None:
    """Take a fault for each cell that is ``wrong``."""

    def text_of(row: int) -> str:
        was = cells.loc[row - FIRST_ROW]
        return (
            f"need {rule}, was {'an empty cell' if pd.isna(was) or was == '' else shown(str(was))}"
        )

    faults.add_all(path, (cells.index[wrong] + FIRST_ROW).tolist(), text_of)


def _origin_ns(times: Times, place: Path | str) -> int:
    try:
        origin = datetime.fromisoformat(times.origin)
    except ValueError:
        raise ConfigError(f"{place}: need times.origin as ISO 8601, was {times.origin!r}") from None
    origin = origin if origin.tzinfo else origin.replace(tzinfo=UTC)
    return round(origin.timestamp()) * SECOND_NS
