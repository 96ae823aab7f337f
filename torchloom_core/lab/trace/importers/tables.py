"""Read a user's table in parts, a Parquet file or a CSV file as text cells."""

import codecs
import csv
import io
import lzma
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.io.common import get_handle  # type: ignore[import-not-found]

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.interface.foreign import shown
from torchloom_core.lab.trace.importers.faults import Faults
from torchloom_core.lab.trace.importers.mapping import Csv

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_BYTES = 1 << 20
_SAMPLE_ROWS = 20
_LAST_BYTES = 1 << 16
_FIRST_ROW = 2

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",  # after UTF-32's, which begins with it
    codecs.BOM_UTF16_BE: "utf-16",
}

_PACKED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar", ".tgz", ".tbz", ".txz")


def csv_parts(path: Path, options: Csv, faults: Faults, rows: int) -> Iterator[pd.DataFrame]:
    """Yield a CSV file as text in parts, at least one; blank rows are skipped but counted."""
    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        head = bytes(opened.handle.read(_SAMPLE_BYTES))
    encoding = _encoding(head, options)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
        if len(head) == _SAMPLE_BYTES:
            text = text[: text.rfind("\n") + 1] or text
        delimiter = _delimiter(text, options, path, faults)
        header = next(iter(_rows(text, delimiter, 1)), [])
        _refuse_duplicates(header, path)
        if path.suffix not in _PACKED:
            _check_last_row(path, encoding, delimiter, len(header), faults)
        with pd.read_csv(
            path,
            sep=delimiter,
            encoding=encoding,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            index_col=False,
            chunksize=rows,
        ) as parts:
            while (part := _next_of(parts)) is not None:
                table = _stripped(part.fillna(""), options, path, faults)
                yield table[(table != "").any(axis="columns")]
    except UnicodeDecodeError as error:
        raise TraceError(_undecodable(path, encoding, error)) from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        with suppress(UnicodeDecodeError, csv.Error):  # csv cannot read it, as when compressed
            _refuse_long_rows(path, encoding, delimiter)
        raise


def _undecodable(path: Path, encoding: str, error: UnicodeDecodeError) -> str:
    """Return an error text with the line at which a file is not in ``encoding``."""
    line = ""
    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        for number, read in enumerate(opened.handle, start=1):
            try:
                read.decode(encoding)
            except UnicodeDecodeError as found:
                if "\0" not in read.decode("latin-1"):  # UTF-16 has no lines of bytes
                    error, line = found, f":{number}"
                break
    return (
        f"{path}{line}: need {encoding.upper()}, was the byte {error.object[error.start]:#04x}: "
        'set its encoding, such as encoding = "cp1252", under [csv] in a file for --map'
    )


def _encoding(head: bytes, options: Csv) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    return options.encoding


def _delimiter(text: str, options: Csv, path: Path, faults: Faults) -> str:
    """Return the delimiter, with a warning if it is not the comma and not in the mapping."""
    found = _likeliest_delimiter(text)
    line = next(iter(text.splitlines()), "")
    if options.delimiter is None:
        if found != ",":
            faults.warn(path, f"delimiter detected: {_DELIMITERS[found]}")
        return found
    if options.delimiter not in line and found in line:
        raise TraceError(
            f"{path}:1: need the delimiter {options.delimiter!r}, was {found!r} in "
            f"{shown(line)}: set csv.delimiter in the mapping"
        )
    return options.delimiter


def _likeliest_delimiter(text: str) -> str:
    """Return the delimiter with which the first rows have as many cells as the header."""
    cut = {mark: {len(row) for row in _rows(text, mark, _SAMPLE_ROWS)} for mark in _DELIMITERS}
    alike = {mark: max(cells) for mark, cells in cut.items() if len(cells) == 1 and max(cells) > 1}
    if alike:
        return "," if "," in alike else max(alike, key=alike.__getitem__)
    header = next(iter(text.splitlines()), "")
    return max(_DELIMITERS, key=header.count)


def _rows(text: str, delimiter: str, most: int) -> list[list[str]]:
    """Return the first rows that are not blank; [] if the text is not CSV."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return list(islice(filter(None, reader), most))
    except csv.Error:  # a cell is too long
        return []


def _refuse_duplicates(header: list[str], path: Path) -> None:
    names = [name.strip() for name in header if name.strip()]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{path}:1: need each column once, was {name!r} twice")


def _check_last_row(path: Path, encoding: str, delimiter: str, cells: int, faults: Faults) -> None:
    """Refuse a last row that is cut off, and warn of one without a line end."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        start = file.seek(max(0, size - _LAST_BYTES) // 4 * 4)
        data = file.read()
    codec = encoding if start == 0 or encoding not in ("utf-16", "utf-32") else f"{encoding}-le"
    _, line_end, last = data.decode(codec, errors="replace").rpartition("\n")
    if not line_end or not last.strip() or last.endswith("\r"):
        return
    rows = _rows(last, delimiter, 1)
    if '"' not in last and rows and len(rows[0]) < cells:
        raise TraceError(
            f"{path}: the last row is cut off: need {cells} cells as in the header and a line "
            f"end, was {shown(last)}"
        )
    faults.warn(path, f"the last row has no line end and may be incomplete: {shown(last)}")


def _stripped(part: pd.DataFrame, options: Csv, path: Path, faults: Faults) -> pd.DataFrame:
    """Return the cells without surrounding blanks, "" for those that the mapping has as empty."""
    part.columns = part.columns.str.strip()
    for name in part.columns:
        cells = part[name].str.strip()
        padded = cells != part[name]
        if padded.any():
            at = int(padded.to_numpy().argmax())
            first = f"{shown(part[name].iloc[at])} in row {part.index[at] + _FIRST_ROW}"
            text = "blanks around cells removed"
            faults.warn(path, text, int(padded.sum()), first)
            part[name] = cells
    return part.replace(list(options.empty), "") if options.empty else part


def _next_of(parts: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    with warnings.catch_warnings():
        # pandas only warns of cells beyond the header's columns, and drops them.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return next(parts, None)


def _refuse_long_rows(path: Path, encoding: str, delimiter: str) -> None:
    with path.open(newline="", encoding=encoding) as file:
        rows = csv.reader(file, delimiter=delimiter)
        header = next(rows)
        faults = Faults()
        for row in rows:
            if len(row) > len(header):
                text = f"need {len(header)} cells as in the header, was {len(row)}"
                faults.add(path, rows.line_num, text)
        faults.refuse()


PART_ROWS = 1 << 16
"""Rows per part."""

UNREADABLE = (
    *(OSError, ValueError, csv.Error, pd.errors.ParserWarning, pa.ArrowException),
    *(RuntimeError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError),
)
"""What pandas raises for a file that is not a table, or is cut off or damaged."""

_OPEN_QUOTE = re.compile(r"EOF inside string starting at row (\d+)")

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
"""Parquet types that a CSV file can represent."""


def read_table(path: Path, csv: Csv, faults: Faults) -> pd.DataFrame:
    """Read a Parquet file, its named index too, or a CSV file as text; blank rows are skipped."""
    return pd.concat(read_parts(path, csv, faults))


def read_parts(path: Path, csv: Csv, faults: Faults) -> Iterator[pd.DataFrame]:
    """Yield what :func:`read_table` returns in parts, at least one."""
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
            yield from csv_parts(path, csv, faults, PART_ROWS)
    except pd.errors.EmptyDataError:
        raise TraceError(f"{path}: need a header, was an empty file") from None
    except ImportError as error:
        name = error.name or getattr(error.__cause__, "name", None) or "its decompressor"
        raise TraceError(f"{path}: cannot be read: {name} is not installed") from None
    except UNREADABLE as error:
        raise TraceError(f"{path}: cannot be read: {reason_of(error)}") from None


def _refuse_unplain(path: Path) -> None:
    """Raise TraceError for a column of a Parquet file that a CSV file could not represent."""
    with pq.ParquetFile(path) as file:
        schema = file.schema_arrow
        for field in schema:
            if len(schema.get_all_field_indices(field.name)) > 1:
                raise TraceError(f"{path}:1: need each column once, was {field.name!r} twice")
            kind = field.type
            kind = kind.value_type if pa.types.is_dictionary(kind) else kind
            if not any(is_plain(kind) for is_plain in _PLAIN):
                raise TraceError(
                    f"{path}:1: need columns of text, numbers, truth values or times, was "
                    f"{field.name!r} of {kind}"
                )
        for batch in file.iter_batches():
            batch.validate(full=True)  # finds text that is not UTF-8


def reason_of(error: Exception) -> str:
    """Return in one line why a table cannot be read, for an error of ``UNREADABLE``."""
    if isinstance(error, UnicodeDecodeError):
        return f"need UTF-8, was the byte {error.object[error.start]:#04x}"
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    if opened := _OPEN_QUOTE.search(reason):  # rows are counted from 0 there
        return f"need a closing quote for the cell in row {int(opened[1]) + 1}, was none"
    return reason or type(error).__name__
