"""Read a user's table, a CSV or a Parquet file, in parts."""

import csv
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.lab.trace.importers.csv_text import csv_parts
from torchloom_core.lab.trace.importers.faults import Faults
from torchloom_core.lab.trace.importers.mapping import Csv

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
    """Read a Parquet file, or a CSV file as text; blank rows are skipped but counted.

    A named index that pandas stored in a Parquet file becomes a column.

    Raises
    ------
    TraceError
        If it cannot be read.
    """
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
