"""Export a trajectory as Parquet to a folder or an object store, file by file.

A file is there as a whole or not at all, and one that is there is not written again: an export
that was cut off, or that is repeated while the Weaver runs, writes only what is missing.
"""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from torchloom_core.checkpoints.storage import Storage, storage_at
from torchloom_core.floor.errors import CheckpointError, StateError
from torchloom_core.live.trajectory.layout import META, part_paths
from torchloom_core.live.trajectory.reader import EpochRecord, read_epochs
from torchloom_core.live.trajectory.retention_steps import in_use
from torchloom_core.live.trajectory.tables import (
    EVENTS_SCHEMA,
    SAMPLES_SCHEMA,
    event_table,
    gathered,
    long_samples,
)
from torchloom_core.live.trajectory.thinned import part_number, raw_parts, readable

_LINES_AT_ONCE = 1 << 16
_BLOCK_BYTES = 16 << 20


def export(root: Path, place: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the bytes of each file that is written to a folder or a URL of fsspec.

    Each part of an epoch becomes one file: ``events-*`` with the columns of ``EVENTS_SCHEMA``,
    ``telemetry-*`` with those of ``SAMPLES_SCHEMA``; ``thinned-*`` and ``meta.json`` are copied.
    The newest part of each kind of an epoch in use is left for the next export. StateError if
    there is no trajectory, it is damaged, or the place cannot be written.
    """
    records = read_epochs(root)
    try:
        storage = storage_at(place)
        for record in records:
            yield from _export_epoch(record, storage)
    except CheckpointError as error:
        raise StateError(str(error)) from None
    except OSError as error:
        where, why = error.filename or place, error.strerror or error
        raise StateError(f"{where}: cannot be written: {why}") from None


def _export_epoch(record: EpochRecord, storage: Storage) -> Iterator[tuple[str, int]]:
    folder, grows = record.folder, in_use(record.folder)
    there = set(storage.files(folder.name))
    with tempfile.TemporaryDirectory(prefix="torchloom-export-") as scratch:
        draft = Path(scratch) / "draft.parquet"
        events = part_paths(folder, "events")
        for part in events[:-1] if grows else events:
            name = f"{part.stem}.parquet"
            if name not in there:
                _write_events(record, part, draft)
                yield _put(storage, f"{folder.name}/{name}", draft)
        newest = part_paths(folder, "telemetry")[-1:] if grows else []
        for part in raw_parts(folder):
            name = f"{part.stem}.parquet"
            if name in there or part in newest:
                continue
            try:
                tables = map(long_samples, record.record_batches(_now(folder, part)))
                _write(draft, SAMPLES_SCHEMA, gathered(tables))
            except StateError:
                if _now(folder, part):
                    raise
            if _now(folder, part):  # otherwise it was thinned meanwhile
                yield _put(storage, f"{folder.name}/{name}", draft)
    raw = {part_number(Path(name)) for name in there if name.startswith("telemetry-")}
    for file, _ in readable(folder):
        # What was exported raw is not exported again once it is thinned.
        if file.path.name not in there and not raw.issuperset(range(file.first, file.last + 1)):
            yield _put(storage, f"{folder.name}/{file.path.name}", file.path)
    if META not in there:
        yield _put(storage, f"{folder.name}/{META}", folder / META)


def _now(folder: Path, part: Path) -> list[Path]:
    """Return the part as it is now, perhaps sealed; nothing once it was thinned."""
    return [one for one in raw_parts(folder) if part_number(one) == part_number(part)]


def _write_events(record: EpochRecord, part: Path, draft: Path) -> None:
    lines = ((record.meta.epoch, line) for line in record.lines([part]))
    groups = iter(lambda: list(itertools.islice(lines, _LINES_AT_ONCE)), [])
    _write(draft, EVENTS_SCHEMA, map(event_table, groups))


def _write(draft: Path, schema: Any, tables: Iterator[Any]) -> None:
    names = [field.name for field in schema]
    try:
        with pq.ParquetWriter(
            draft,
            schema,
            compression="zstd",
            use_dictionary=[name for name in names if name not in ("value", "body")],
            use_byte_stream_split=["value"] if "value" in names else False,
        ) as parquet:
            for table in tables:
                parquet.write_table(table)
    except OSError as error:
        if error.filename:
            raise
        place, why = draft.parent.parent, error.strerror or error
        raise StateError(
            f"{place}: cannot be written: {why}; set TMPDIR to a folder with room"
        ) from None


def _put(storage: Storage, name: str, source: Path) -> tuple[str, int]:
    with source.open("rb") as file:
        storage.write(name, iter(lambda: file.read(_BLOCK_BYTES), b""))
    return name, source.stat().st_size
