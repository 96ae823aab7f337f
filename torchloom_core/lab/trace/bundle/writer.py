"""Write a trace bundle atomically."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
import pyarrow as pa

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
from torchloom_core.lab.trace.bundle.telemetry_writer import TelemetryWriter

DAY_NS = 86_400 * SECOND_NS

_FILE_OF = {kind: file for file, kind in ROW_OF.items()}


class BundleWriter:
    """Context manager that writes a bundle; the bundle appears at its end, unless an error occurs.

    Rows may come in any order: events and actions are sorted, the others keep their order.

    Parameters
    ----------
    path : Path
        The folder to create, ``NAME.tltrace``.
    name : str
        Name of the trace.
    start_ns, end_ns : int
        The recorded span.
    exposure : mapping of str to Exposure, optional
        By default computed from the topology, or without one from all named components.
    force : bool
        Replace an existing bundle; anything else at the path is never replaced.

    Raises
    ------
    TraceError
        If the path exists, the span is empty or out of range, or the bundle cannot be written.
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
        exposure: Mapping[str, Exposure] | None = None,
        notes: str = "",
        force: bool = False,
    ) -> None:
        if end_ns <= start_ns:
            raise TraceError(f"{path}: need end_ns > start_ns, was {end_ns} and {start_ns}")
        refuse_far(path, start_ns, end_ns)
        self.path = path
        self._force = force
        self._exposure = exposure
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
        """Add telemetry, its ``t_avail`` no earlier than that of the rows before.

        Raises
        ------
        TraceError
            If a column of ``TELEMETRY_COLUMNS`` is missing, of another type or has a null,
            ``t_avail`` goes back, or the other columns differ from those of the first table.
        """
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
        exposure = self._measure_exposure() if self._exposure is None else self._exposure
        manifest = msgspec.structs.replace(
            self._manifest,
            exposure=dict(sorted(exposure.items())),
            files={
                file: FileEntry(sha256=sha256_of(self._folder / file), rows=rows[file])
                for file in sorted(rows)
            },
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        (self._folder / MANIFEST).write_bytes(text + b"\n")

    def _measure_exposure(self) -> dict[str, Exposure]:
        parts = self._topology or [
            Component(id=name, kind="node")
            for name in sorted(self._named | self._telemetry.components)
        ]
        return exposure_of(parts, self._manifest.start_ns, self._manifest.end_ns)


def exposure_of(parts: Sequence[Component], start_ns: int, end_ns: int) -> dict[str, Exposure]:
    """Return number and time in service of the components of each kind in a span."""
    seconds: dict[str, list[float]] = {}
    for part in parts:
        from_ns = start_ns if part.from_ns is None else max(part.from_ns, start_ns)
        until_ns = end_ns if part.until_ns is None else min(part.until_ns, end_ns)
        if until_ns > from_ns:
            seconds.setdefault(part.kind, []).append((until_ns - from_ns) / DAY_NS)
    return {
        kind: Exposure(components=len(days), component_days=sum(days))
        for kind, days in seconds.items()
    }


def refuse_to_replace(path: Path, *, force: bool) -> None:
    """Raise TraceError if no bundle may be written to ``path``; call before long work.

    Folders left by killed processes are removed first.
    """
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
