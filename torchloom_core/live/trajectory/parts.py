"""Append-only files in numbered parts, and their complete records after a crash."""

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from torchloom_core.live.trajectory.layout import SEALED, PartKind, part_path, part_paths

_CONTINUATION = b"\xff\xff\xff\xff"
"""The first bytes of every Arrow IPC message."""

_WRITEBACK_BYTES = 4 << 20
"""The disk begins to write after this many bytes: to sync a whole part would stall the Weaver."""

_PIECES_AT_ONCE = 1024
"""Linux' limit per call (IOV_MAX)."""

Buffer = Any
"""``bytes``, or a pyarrow buffer: anything that memoryview accepts."""

logger = logging.getLogger(__name__)


class PartWriter:
    """Appends complete records, and starts a new part once the present one is large enough."""

    def __init__(
        self,
        folder: Path,
        kind: PartKind,
        part_bytes: int,
        ended: Callable[[Path], None] = lambda _: None,
    ) -> None:
        """Call ``ended(path)`` for each part to which nothing more will be appended."""
        self._folder = folder
        self._kind: PartKind = kind
        self._part_bytes = part_bytes
        self._ended = ended
        self._number = 0
        self._path = folder
        self._file = -1
        self._size = self._size_before = self._dirty = 0

    def next_is_new(self) -> bool:
        """Return whether the next append starts a part."""
        return self._file < 0 or self._size >= self._part_bytes

    def append(self, *pieces: Buffer) -> None:
        """Write all pieces, which form complete records, to one part; none if OSError is raised."""
        if self.next_is_new():
            self._open_next()
        left = [memoryview(piece).cast("B") for piece in pieces]
        size = sum(map(len, left))
        self._size_before = self._size
        try:
            while left:
                left = _rest(left, os.writev(self._file, left[:_PIECES_AT_ONCE]))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += size
        self._dirty += size
        if self._dirty >= _WRITEBACK_BYTES:
            _begin_writeback(self._file, self._size - self._dirty, self._dirty)
            self._dirty = 0

    def undo(self) -> None:
        """Undo the last append."""
        self._size = self._size_before
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, self._size)

    def sync(self) -> None:
        """Wait until everything is on disk."""
        if self._file >= 0:
            os.fsync(self._file)

    def close(self) -> None:
        """Close the present part."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._ended(self._path)

    def _open_next(self) -> None:
        if self._file >= 0:
            os.fsync(self._file)
            self.close()
        self._number += 1
        self._size = self._dirty = 0
        self._path = part_path(self._folder, self._kind, self._number)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_folder(self._folder)


def _rest(pieces: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left of ``pieces`` after their first ``written`` bytes."""
    for index, piece in enumerate(pieces):
        if written < len(piece):
            return [piece[written:], *pieces[index + 1 :]]
        written -= len(piece)
    return []


def _begin_writeback(file: int, start: int, size: int) -> None:
    if hasattr(os, "posix_fadvise"):
        # Linux then writes what is in its cache, and returns at once. What it has written before
        # is left there for the process that seals: to drop it takes three times as long.
        with contextlib.suppress(OSError):
            os.posix_fadvise(file, start, size, os.POSIX_FADV_DONTNEED)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def whole_bytes(data: bytes, kind: PartKind) -> tuple[int, bool]:
    """Return how many leading bytes are complete records, and whether the rest is a torn one."""
    if kind == "events":
        return data.rfind(b"\n") + 1, True
    source = pa.BufferReader(data)
    end = start = 0
    while start < len(data):
        message = _message_at(source, start)
        if message is None:
            return end, _is_torn(data, source, start)
        start = source.tell()
        # Names without the rows that use them are the first half of a torn record.
        if message == "record batch":
            end = start
    return end, True


def repair(folder: Path) -> None:
    """Cut the torn record off the last part of each kind; delete a part without a complete one."""
    kinds: tuple[PartKind, ...] = ("events", "telemetry")
    for kind in kinds:
        for path in part_paths(folder, kind)[-1:]:
            if path.suffix == SEALED:
                continue  # written as a whole
            data = path.read_bytes()
            end, torn = whole_bytes(data, kind)
            if not torn:
                logger.warning("%s: damaged at byte %d, not repaired", path, end)
            elif end == 0:
                path.unlink()
            elif end < len(data):
                os.truncate(path, end)


def _message_at(source: Any, start: int) -> str | None:
    source.seek(start)
    try:
        return str(pa.ipc.read_message(source).type)
    except (EOFError, OSError, ValueError, pa.ArrowException):
        return None


def _is_torn(data: bytes, source: Any, start: int) -> bool:
    """Return whether the bytes from ``start`` are the beginning of one message and no more."""
    rest = data[start : start + len(_CONTINUATION)]
    if not _CONTINUATION.startswith(rest):
        return False
    at = data.find(_CONTINUATION, start + 1)
    while at >= 0:
        if (at - start) % 8 == 0 and _message_at(source, at) is not None:
            return False
        at = data.find(_CONTINUATION, at + 1)
    return True
