"""The text of a CSV file as rows of cells, however it is written: encoding, delimiter, blanks."""

import codecs
import csv
import io
import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pandas as pd
from pandas.io.common import get_handle  # type: ignore[import-not-found]

from torchloom_core.errors import TraceError
from torchloom_core.plugin.foreign import shown
from torchloom_core.trace.importers.faults import Faults
from torchloom_core.trace.importers.mapping import Csv

_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LOOKED_AT_BYTES = 1 << 20
_LOOKED_AT_ROWS = 20
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


def csv_parts(path: Path, said: Csv, faults: Faults, rows: int) -> Iterator[pd.DataFrame]:
    """Yield a CSV file as text without blank rows, whose number stays: one part at the least.

    Parameters
    ----------
    said : Csv
        How it is written, as far as somebody says so.
    rows : int
        In a part, at most.

    Raises
    ------
    TraceError
        If the header has another delimiter than was said, or a column twice.
    """
    head = _head(path)
    encoding = _encoding(head, said)
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head)
        if len(head) == _LOOKED_AT_BYTES:
            text = text[: text.rfind("\n") + 1] or text
        delimiter = _delimiter(text, said, path, faults)
        header = next(iter(_rows(text, delimiter, 1)), [])
        _refuse_twice(header, path)
        if path.suffix not in _PACKED:
            _look_at_the_end(path, encoding, delimiter, len(header), faults)
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
                table = _plain(part.fillna(""), said, path, faults)
                yield table[(table != "").any(axis="columns")]
    except UnicodeDecodeError as error:
        raise TraceError(_undecodable(path, encoding, error)) from None
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        with suppress(UnicodeDecodeError, csv.Error):  # not by csv, such as a compressed one
            _refuse_long_rows(path, encoding, delimiter)
        raise


def _undecodable(path: Path, encoding: str, error: UnicodeDecodeError) -> str:
    """Return in one line where a file is not in the encoding that it was taken for."""
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
        'say what it is written in, such as encoding = "cp1252", under [csv] in a file for --map'
    )


def _head(path: Path) -> bytes:
    with get_handle(path, "rb", compression="infer", is_text=False) as opened:
        return bytes(opened.handle.read(_LOOKED_AT_BYTES))


def _encoding(head: bytes, said: Csv) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    return said.encoding


def _delimiter(text: str, said: Csv, path: Path, faults: Faults) -> str:
    """Return what stands between cells, and remark it where nobody has said that it does."""
    found = _likeliest_delimiter(text)
    line = next(iter(text.splitlines()), "")
    if said.delimiter is None:
        if found != ",":
            faults.remark(path, f"cells are taken to be separated by {_DELIMITERS[found]}")
        return found
    if said.delimiter not in line and found in line:
        raise TraceError(
            f"{path}:1: need csv.delimiter of the mapping, {said.delimiter!r}, between cells, was "
            f"{shown(line)}: is it {found!r}?"
        )
    return said.delimiter


def _likeliest_delimiter(text: str) -> str:
    """Return the delimiter that cuts the first rows into as many cells as the header, or it."""
    cut = {mark: {len(row) for row in _rows(text, mark, _LOOKED_AT_ROWS)} for mark in _DELIMITERS}
    alike = {mark: max(cells) for mark, cells in cut.items() if len(cells) == 1 and max(cells) > 1}
    if alike:
        return "," if "," in alike else max(alike, key=alike.__getitem__)
    header = next(iter(text.splitlines()), "")
    return max(_DELIMITERS, key=header.count)


def _rows(text: str, delimiter: str, most: int) -> list[list[str]]:
    """Return the first rows that are not blank; none where they cannot be told."""
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        return list(islice(filter(None, reader), most))
    except csv.Error:  # of a cell that is too long
        return []


def _refuse_twice(header: list[str], path: Path) -> None:
    names = [name.strip() for name in header if name.strip()]
    for name in names:
        if names.count(name) > 1:
            raise TraceError(f"{path}:1: need each column once, was {name!r} again")


def _look_at_the_end(path: Path, encoding: str, delimiter: str, cells: int, faults: Faults) -> None:
    """Refuse a last row that was cut off, and remark one that may have been."""
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
            f"{path}: the last row is cut off: need {cells} cells as in the header, was "
            f"{shown(last)}, without a line end"
        )
    faults.remark(path, f"the last row has no line end; is it whole? It is {shown(last)}")


def _plain(part: pd.DataFrame, said: Csv, path: Path, faults: Faults) -> pd.DataFrame:
    """Return the cells without blanks around them, and empty where they are as good as that."""
    part.columns = part.columns.str.strip()
    for name in part.columns:
        cells = part[name].str.strip()
        padded = cells != part[name]
        if padded.any():
            at = int(padded.to_numpy().argmax())
            first = f"{shown(part[name].iloc[at])} in row {part.index[at] + _FIRST_ROW}"
            text = "blanks around cells, which are taken off"
            faults.remark(path, text, int(padded.sum()), first)
            part[name] = cells
    return part.replace(list(said.empty), "") if said.empty else part


def _next_of(parts: Iterator[pd.DataFrame]) -> pd.DataFrame | None:
    with warnings.catch_warnings():
        # pandas only warns of cells that no column of the header is for, and drops them.
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
