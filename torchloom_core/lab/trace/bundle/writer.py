"""Write a trace bundle atomically."""

from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from torchloom_core.floor.atomic_folder import AtomicFolder, clear_abandoned
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import refuse_unwritable
from torchloom_core.lab.trace.bundle.checksums import sha256_of
from torchloom_core.lab.trace.bundle.lines import encode_row
from torchloom_core.lab.trace.bundle.schema import (
    EVENTS,
    INPUTS,
    MANIFEST,
    ROW_OF,
    TELEMETRY,
    TELEMETRY_COLUMNS,
    ActionTaken,
    Component,
    Event,
    Exposure,
    FileEntry,
    Manifest,
    Placement,
    Row,
    refuse_far,
)
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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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
        while self._pending_rows >= GROUP_ROWS:
            self._write(GROUP_ROWS)

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
        if self._groups == GROUPS_PER_FILE:
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


DAY_NS = 86_400 * SECOND_NS

_FILE_OF = {kind: file for file, kind in ROW_OF.items()}


class BundleWriter:
    """Context manager that writes a bundle; the bundle appears at its end, unless an error occurs.

    Rows may come in any order: events and actions are sorted, the others keep their order. The
    exposure is that of the topology, or without one of all named components.
    ``force`` replaces an existing bundle, and nothing else. TraceError if the path exists, the span
    is empty or out of range, or the bundle cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        start_ns: int,
        end_ns: int,
        source: str,
        licence: str,
        synthetic: bool,
        load_dependent: Sequence[str] = (),
        notes: str = "",
        force: bool = False,
    ) -> None:
        if end_ns <= start_ns:
            raise TraceError(f"{path}: need end_ns > start_ns, was {end_ns} and {start_ns}")
        refuse_far(path, start_ns, end_ns)
        self.path = path
        self._force = force
        self._manifest = Manifest(
            name=name,
            start_ns=start_ns,
            end_ns=end_ns,
            source=source,
            licence=licence,
            synthetic=synthetic,
            load_dependent=tuple(load_dependent),
            notes=notes,
        )
        self._lines: dict[str, list[tuple[tuple[int, str], bytes]]] = {}
        self._topology: list[Component] = []
        self._named: set[str] = set()
        self._inputs: IO[bytes] | None = None
        self._input_rows = 0

    def __enter__(self) -> "BundleWriter":
        refuse_to_replace(self.path, force=self._force)
        try:
            self._whole = AtomicFolder(self.path)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self._folder = self._whole.folder
        self._telemetry = TelemetryWriter(self._folder / TELEMETRY)
        return self

    def add(self, row: Row) -> None:
        """Add one row of any kind; TraceError if its extra columns cannot be written."""
        file = _FILE_OF[type(row)]
        key = (0, "")
        if isinstance(row, Event | ActionTaken):
            key = (row.t_event, row.id)
        if isinstance(row, Component):
            self._topology.append(row)
        elif isinstance(row, Event | ActionTaken | Placement):
            self._named.add(row.component)
        self._lines.setdefault(file, []).append((key, encode_row(row)))

    def add_input(self, line: bytes) -> None:
        """Add one line of ``inputs.jsonl``: a kernel input, JSON without a line end."""
        if self._inputs is None:
            self._inputs = (self._folder / INPUTS).open("wb")
        self._inputs.write(line + b"\n")
        self._input_rows += 1

    def telemetry(self, table: pa.Table) -> None:
        """Add telemetry, its ``t_avail`` no earlier than before, or raise a TraceError."""
        self._telemetry.append(table)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
                refuse_to_replace(self.path, force=self._force)  # the path may exist by now
                self._whole.put_in_place(replace=self._force)
        except OSError as failure:
            raise _unwritable(self.path, failure) from None
        finally:
            # After put_in_place both are closed already; else the folder is discarded.
            with suppress(OSError, pa.ArrowException):
                self._telemetry.close()
            with suppress(OSError):
                if self._inputs is not None:
                    self._inputs.close()
            self._whole.discard()
        if isinstance(error, OSError):
            raise _unwritable(self.path, error) from None

    def _finish(self) -> None:
        rows: dict[str, int] = {}
        for file, lines in self._lines.items():
            lines.sort(key=itemgetter(0))
            (self._folder / file).write_bytes(b"".join(line for _, line in lines))
            rows[file] = len(lines)
        if EVENTS not in rows:
            (self._folder / EVENTS).touch()
            rows[EVENTS] = 0
        if self._inputs is not None:
            self._inputs.close()
            rows[INPUTS] = self._input_rows
        self._telemetry.close()
        rows.update({f"{TELEMETRY}/{file}": n for file, n in self._telemetry.rows.items()})
        manifest = msgspec.structs.replace(
            self._manifest,
            exposure=self._exposure(),
            files={
                file: FileEntry(sha256=sha256_of(self._folder / file), rows=rows[file])
                for file in sorted(rows)
            },
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        (self._folder / MANIFEST).write_bytes(text + b"\n")

    def _exposure(self) -> dict[str, Exposure]:
        """Return number and time in service of the components of each kind, by kind."""
        start_ns, end_ns = self._manifest.start_ns, self._manifest.end_ns
        parts = self._topology or [
            Component(id=name, kind="node")
            for name in sorted(self._named | self._telemetry.components)
        ]
        days: dict[str, list[float]] = {}
        for part in parts:
            from_ns = start_ns if part.from_ns is None else max(part.from_ns, start_ns)
            until_ns = end_ns if part.until_ns is None else min(part.until_ns, end_ns)
            if until_ns > from_ns:
                days.setdefault(part.kind, []).append((until_ns - from_ns) / DAY_NS)
        return {
            kind: Exposure(components=len(of), component_days=sum(of))
            for kind, of in sorted(days.items())
        }


def refuse_to_replace(path: Path, *, force: bool) -> None:
    """Raise TraceError if no bundle may be written there, once abandoned folders are removed."""
    refuse_unwritable(path, TraceError)
    clear_abandoned(path)
    if not path.exists():
        return
    if not force:
        raise TraceError(f"{path}: exists already; use --force to replace it")
    if not (path / MANIFEST).is_file():
        raise TraceError(f"{path}: --force replaces only trace bundles, and this is none")


def _unwritable(path: Path, error: OSError) -> TraceError:
    place = error.filename or path
    return TraceError(f"{place}: cannot be read or written: {error.strerror or error}")
