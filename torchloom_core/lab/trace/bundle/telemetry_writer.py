"""Write telemetry to the Parquet files of a bundle; :class:`BundleWriter` calls it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torchloom_core.floor.errors import TraceError
from torchloom_core.lab.trace.bundle.schema import TELEMETRY_COLUMNS
from torchloom_core.lab.trace.bundle.telemetry import conform

GROUP_ROWS, GROUPS_PER_FILE = 1 << 20, 32

_ENCODING = {
    "t_event": "DELTA_BINARY_PACKED",
    "t_avail": "DELTA_BINARY_PACKED",
    "value": "BYTE_STREAM_SPLIT",
}


class TelemetryWriter:
    """Writes ``000000.parquet`` and so on; the same rows give the same bytes, however batched.

    A row group is buffered until it is full. ``rows`` are those of each finished file;
    ``components`` are all in the written rows.
    """

    def __init__(
        self,
        folder: Path,
        *,
        group_rows: int = GROUP_ROWS,
        groups_per_file: int = GROUPS_PER_FILE,
    ) -> None:
        self._folder = folder
        self._group_rows = group_rows
        self._groups_per_file = groups_per_file
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._schema: pa.Schema | None = None
        self._file: pq.ParquetWriter | None = None
        self._groups = 0
        self._last_ns: int | None = None
        self.rows: dict[str, int] = {}
        self.components: set[str] = set()

    def append(self, table: pa.Table) -> None:
        """Append rows; see :meth:`BundleWriter.telemetry`."""
        table = _sorted(_whole(conform(table, "telemetry")), self._last_ns)
        if not table.num_rows:
            return
        if self._schema is None:
            self._schema = table.schema.remove_metadata()
            self._folder.mkdir()
        elif table.schema.remove_metadata() != self._schema:
            raise TraceError(
                f"telemetry: need the columns of the first table, "
                f"{', '.join(self._schema.names)}, was {', '.join(table.column_names)}"
            )
        self._last_ns = table["t_avail"][-1].as_py()
        self._pending.append(table)
        self._pending_rows += table.num_rows
        while self._pending_rows >= self._group_rows:
            self._write(self._group_rows)

    def close(self) -> None:
        """Write the buffered rows and close the last file."""
        if self._pending_rows:
            self._write(self._pending_rows)
        self._end_file()

    def _write(self, rows: int) -> None:
        pending = pa.concat_tables(self._pending)
        group = pending.slice(0, rows).combine_chunks().unify_dictionaries()
        rest = pending.slice(rows)
        self._pending, self._pending_rows = ([rest] if rest.num_rows else []), rest.num_rows
        self.components.update(pc.unique(group["component"]).to_pylist())
        if self._file is None:
            self._name = f"{len(self.rows):06}.parquet"
            self._file = _begin(self._folder / self._name, group.schema)
            self._groups = self.rows[self._name] = 0
        self._file.write_table(group, row_group_size=rows)
        self._groups += 1
        self.rows[self._name] += rows
        if self._groups == self._groups_per_file:
            self._end_file()

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _begin(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in _ENCODING],
        column_encoding=_ENCODING,
    )


def _whole(table: pa.Table) -> pa.Table:
    for name in TELEMETRY_COLUMNS:
        if table[name].null_count:
            row = int(pc.index(table[name].is_null(), True).as_py())
            raise TraceError(f"telemetry:{row + 1}: need a value of {name}, was null")
    return table


def _sorted(table: pa.Table, last_ns: int | None) -> pa.Table:
    """Sort rows of equal ``t_avail`` by ``t_event``; refuse a ``t_avail`` that goes back."""
    t_avail = table["t_avail"].to_numpy()
    if not len(t_avail):
        return table
    before = np.concatenate([[t_avail[0] if last_ns is None else last_ns], t_avail[:-1]])
    if (back := t_avail < before).any():
        row = int(back.argmax())
        raise TraceError(
            f"telemetry:{row + 1}: need t_avail >= {before[row]}, that of the row before, "
            f"was {t_avail[row]}"
        )
    t_event = table["t_event"].to_numpy()
    ties = np.diff(t_avail) == 0
    if (np.diff(t_event)[ties] >= 0).all():
        return table
    return table.take(np.lexsort((t_event, t_avail)))
