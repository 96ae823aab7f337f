"""Read a trace bundle: its rows at once, its telemetry in parts of bounded size."""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from torchloom_core.config.faults import broken_rule
from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.floor.errors import TraceError
from torchloom_core.floor.files import open_regular
from torchloom_core.floor.suggest import listed
from torchloom_core.interface.arrays import Ints
from torchloom_core.lab.trace.bundle.checksums import refuse_changed, sha256_of
from torchloom_core.lab.trace.bundle.lines import read_rows
from torchloom_core.lab.trace.bundle.schema import (
    ACTIONS,
    EVENTS,
    INPUTS,
    JOBS,
    MANIFEST,
    PLACEMENT,
    ROW_OF,
    SCHEMA_VERSION,
    TELEMETRY,
    TOPOLOGY,
    ActionTaken,
    Component,
    Event,
    Job,
    Manifest,
    Placement,
    Row,
    refuse_far,
)
from torchloom_core.lab.trace.bundle.telemetry import first_after, names_in, parts, steps_in
from torchloom_core.wire.codec import UNREADABLE

if TYPE_CHECKING:
    import pandas as pd

_Row = TypeVar("_Row", bound=Row)
_T = TypeVar("_T")

_LISTED = 5

REPORT_STEP_NS = 3_600 * SECOND_NS
"""Resolution of :meth:`Bundle.reports`."""

Look = tuple[tuple[str, int, int, int], ...]
"""Name, inode, time and size of every file of a bundle."""


class Bundle:
    """A folder ``NAME.tltrace``, see :mod:`torchloom_core.lab.trace.bundle.schema`.

    Each file is read once. :mod:`torchloom_core.lab.trace.bundle.checksums` checks the checksums,
    :mod:`torchloom_core.lab.trace.validation.validate` the rows against each other.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self._computed: dict[Hashable, Any] = {}

    @classmethod
    def open(cls, path: Path) -> "Bundle":
        """Return the bundle at ``path``.

        TraceError if there is none, its manifest cannot be read or has another schema, or
        ``events.jsonl`` is missing.
        """
        if not path.is_dir():
            what = "a file" if path.exists() else "nothing: there is no such folder"
            raise TraceError(f"{path}: need a trace bundle, was {what}")
        manifest = read_manifest(path)
        if not (path / EVENTS).is_file():
            raise TraceError(f"{path}: need a file {EVENTS}, was none")
        return cls(path, manifest)

    def topology(self) -> tuple[Component, ...]:
        """Return the components in file order; () without the file."""
        return self._rows(TOPOLOGY, Component)

    def jobs(self) -> tuple[Job, ...]:
        """Return the jobs in file order; () without the file."""
        return self._rows(JOBS, Job)

    def placement(self) -> tuple[Placement, ...]:
        """Return the placement of ranks on components in file order; () without the file."""
        return self._rows(PLACEMENT, Placement)

    def actions(self) -> tuple[ActionTaken, ...]:
        """Return the actions, sorted by ``(t_event, id)``; () without the file."""
        return self._rows(ACTIONS, ActionTaken)

    def events(self) -> tuple[Event, ...]:
        """Return the events that became known by the end, sorted by ``(t_event, id)``."""
        end_ns = self.manifest.end_ns
        return self.once(
            "events",
            lambda own: tuple(one for one in own._rows(EVENTS, Event) if _known_ns(one) <= end_ns),
        )

    @property
    def beyond(self) -> str:
        """One line on the events after the manifest's end, which are ignored; "" if none."""
        end_ns = self.manifest.end_ns
        names = [event.id for event in self._rows(EVENTS, Event) if _known_ns(event) > end_ns]
        if not names:
            return ""
        return (
            f"{self.path / EVENTS}: events after the end of the trace, {moment_text(end_ns)}, "
            f"ignored: {len(names)} ({listed(names, most=_LISTED)})"
        )

    @property
    def metrics(self) -> tuple[str, ...]:
        """Sorted names of the metrics in the telemetry; () without any."""
        return self._names("metric")

    @property
    def measured(self) -> tuple[str, ...]:
        """Sorted names of the components with telemetry; () without any."""
        return self._names("component")

    @property
    def parquet_files(self) -> tuple[Path, ...]:
        """The telemetry files, in reading order."""
        return tuple(sorted((self.path / TELEMETRY).glob("*.parquet")))

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Files of the bundle without a checksum in the manifest, relative to the bundle."""
        return tuple(file for file in self._data_files if file not in self.manifest.files)

    @property
    def checksums(self) -> dict[str, str]:
        """The SHA-256 of each data file, also of those that the manifest does not list."""
        listed = self.manifest.files
        return {
            file: listed[file].sha256 if file in listed else sha256_of(self.path / file)
            for file in self._data_files
        }

    @property
    def _data_files(self) -> list[str]:
        there = [file for file in (*ROW_OF, INPUTS) if (self.path / file).exists()]
        return there + [str(path.relative_to(self.path)) for path in self.parquet_files]

    def telemetry(
        self,
        start_ns: int | None = None,
        end_ns: int | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the telemetry with ``start_ns <= t_avail < end_ns``, in the order of arrival.

        Tables have the columns of ``TELEMETRY_COLUMNS``, then those unknown to the schema; at most
        2**18 rows; ``component`` and ``metric`` are dictionary arrays. By default all metrics.
        TraceError if a file cannot be read or lacks a column.
        """
        for path in self.parquet_files if metrics is None or metrics else ():
            yield from parts(path, start_ns=start_ns, end_ns=end_ns, metrics=metrics)

    def first_reports(self, since: tuple[tuple[str, int], ...]) -> dict[tuple[str, int], int]:
        """Return the first telemetry of each component from its moment in ns on, if any; cached."""
        return self.once(("first_reports", since), lambda own: first_after(own.telemetry, since))

    def once(self, key: Hashable, compute: Callable[["Bundle"], _T]) -> _T:
        """Return what ``compute`` returns for this bundle, cached by ``key``."""
        if key not in self._computed:
            self._computed[key] = compute(self)
        found: _T = self._computed[key]
        return found

    def reports(self, until_ns: int) -> tuple[Ints, Ints]:
        """Return the hours before that of ``until_ns`` in which each component sent telemetry.

        They are two arrays ``(pairs,)``: ``REPORT_STEP_NS`` since the epoch, and index into
        ``measured``; each pair once, sorted.
        """
        hour, component = self.once(
            "reports", lambda own: steps_in(own.parquet_files, own.measured, REPORT_STEP_NS)
        )
        end = np.searchsorted(hour, until_ns // REPORT_STEP_NS)
        return hour[:end], component[:end]

    def digest(self) -> str:
        """Return the SHA-256 of the manifest and of the files that it does not list.

        It identifies the content of the bundle as long as
        :func:`~torchloom_core.lab.trace.bundle.checksums.changed` finds no fault.
        """
        return self._digest

    def refuse_replaced(self) -> None:
        """Raise a TraceError if the bundle or a file of it changed since its digest."""
        if Bundle.open(self.path).digest() != self._digest:
            raise TraceError(
                f"{self.path}: need a bundle that does not change while it is read, was replaced: "
                f"run the command again"
            )
        refuse_changed(self.path, self.manifest.files)

    def frame(self, file: str) -> "pd.DataFrame":
        """Return the rows of one file, such as ``EVENTS``, with their unknown columns.

        Columns of whole numbers with missing values are ``Int64``, not ``float64``.
        """
        import pandas as pd

        rows = self._rows(file, ROW_OF[file])
        columns = [field for field in ROW_OF[file].__struct_fields__ if field != "extra"]
        columns += sorted({name for row in rows for name in row.extra})
        records = [{**msgspec.structs.asdict(row), **row.extra} for row in rows]
        cells = {name: [record.get(name) for record in records] for name in columns}
        return pd.DataFrame({name: _series(column) for name, column in cells.items()})

    def _rows(self, file: str, kind: type[_Row]) -> tuple[_Row, ...]:
        """Return the rows of a file, read once; events and actions sorted."""
        return self.once(file, lambda own: _read(own.path / file, kind))

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256((self.path / MANIFEST).read_bytes())
        for file in self.unlisted:
            digest.update(f"{file} {sha256_of(self.path / file)}".encode())
        return digest.hexdigest()

    def _names(self, column: str) -> tuple[str, ...]:
        def compute(own: Bundle) -> tuple[str, ...]:
            found = (names_in(path, column) for path in own.parquet_files)
            return tuple(sorted(set[str]().union(*found)))

        return self.once(column, compute)


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of the bundle at ``path``; TraceError if it is missing or invalid."""
    place = path / MANIFEST
    try:
        with open_regular(place) as file:
            table: dict[str, Any] = msgspec.json.decode(file.read(), type=dict[str, Any])
    except FileNotFoundError:
        raise TraceError(f"{path}: need a file {MANIFEST}, was none") from None
    except OSError as error:
        raise TraceError(f"{place}: cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise TraceError(f"{place}: need a JSON object: {error}") from None
    schema = table.get("schema", SCHEMA_VERSION)
    if schema != SCHEMA_VERSION:
        raise TraceError(f"{place}: need schema {SCHEMA_VERSION}, was {schema!r}")
    try:
        manifest = msgspec.convert(table, Manifest)
    except msgspec.ValidationError as error:
        raise TraceError(broken_rule(str(place), table, Manifest, error)) from None
    refuse_far(place, manifest.start_ns, manifest.end_ns)
    return manifest


def look_of(path: Path) -> Look:
    """Return a value that changes if the bundle at ``path`` is replaced, without reading it."""
    return tuple(
        (str(file), seen.st_ino, seen.st_mtime_ns, seen.st_size)
        for file in sorted(path.rglob("*"))
        if (seen := file.lstat())
    )


def _series(column: list[Any]) -> "pd.Series[Any]":
    import pandas as pd

    if all(cell is None or (type(cell) is int and abs(cell) < 2**63) for cell in column):
        return pd.Series(column, dtype="Int64" if None in column else "int64")
    return pd.Series(column, dtype=object).infer_objects()


def _read(path: Path, kind: type[_Row]) -> tuple[_Row, ...]:
    """Return the rows of a file that may be absent; events and actions by ``(t_event, id)``."""
    rows: tuple[Any, ...] = read_rows(path, kind) if path.exists() else ()
    if kind in (Event, ActionTaken):
        rows = tuple(sorted(rows, key=lambda row: (row.t_event, row.id)))
    return rows


def _known_ns(event: Event) -> int:
    return max(event.t_event, event.t_avail)


class DerivedBundle(Bundle):
    """A bundle with the same files and metrics as another; a subclass overrides what differs."""

    def __init__(self, bundle: Bundle, manifest: Manifest | None = None) -> None:
        super().__init__(bundle.path, manifest or bundle.manifest)
        self._bundle = bundle

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the original bundle."""
        return self._bundle.metrics

    @property
    def measured(self) -> tuple[str, ...]:
        """Those of the original bundle."""
        return self._bundle.measured

    def reports(self, until_ns: int) -> tuple[Ints, Ints]:
        """Those of the original bundle, up to the end of this one."""
        return self._bundle.reports(min(until_ns, self.manifest.end_ns))
