"""Which key each incarnation of a worker was granted to.

It is stored, since credentials stay valid: an incarnation is never granted to another key, and a
worker's are revoked by their keys.
"""

import logging
import os
import weakref
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_private
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

MOST_GRANTS = 200_000
"""Maximum number of grants; the oldest are forgotten. The file is rewritten at twice as many."""

Incarnation = tuple[str, int]
"""Worker and incarnation."""

Grant = tuple[str, int, str]
"""Worker, incarnation, and the public key that it was granted to."""

_lines = msgspec.json.Decoder(Grant)


class Grants:
    """The newest grants; with a path also those of earlier Weavers, one JSON line each.

    ``added`` counts all that were added, those that were forgotten since included.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._key_of: dict[Incarnation, str] = {}
        self._on_file = 0
        self._file = -1
        self._torn = b""
        """What ends the last line if a full disk has cut it short."""
        self._close: Callable[[], object] = lambda: None
        self._limited_log = RateLimitedLog(_log)
        if path is not None:
            self._read(path)
        self.added = len(self._key_of)

    def __len__(self) -> int:
        return len(self._key_of)

    def keys_of(self, worker: str) -> list[str]:
        """Return the keys that the incarnations of a worker were granted to."""
        return [key for (name, _), key in self._key_of.items() if name == worker]

    def key_of(self, process: Incarnation) -> str | None:
        """Return the key that the incarnation was granted to, if any."""
        return self._key_of.get(process)

    def newest(self, count: int) -> list[Grant]:
        """Return the ``count`` newest grants, oldest first."""
        newest = list(islice(reversed(self._key_of.items()), count))
        return [(*process, key) for process, key in reversed(newest)]

    def add(self, process: Incarnation, public_key: str) -> None:
        """Note that the incarnation was granted to the key; a failed write is logged."""
        if self._key_of.get(process) == public_key:
            return
        self.added += process not in self._key_of
        self._key_of[process] = public_key
        if len(self._key_of) > MOST_GRANTS:
            del self._key_of[next(iter(self._key_of))]
        if self._path is None:
            return
        line = self._torn + _line(process, public_key)
        try:
            written = os.write(self._opened(self._path), line)
            self._torn = b"" if written == len(line) else b"\n"
        except OSError as error:
            self._limited_log.add("", f"{self._path}: cannot be written: {error.strerror}")
        self._on_file += 1
        if self._on_file > 2 * MOST_GRANTS:
            self._write(self._path)

    def _opened(self, path: Path) -> int:
        """Return the open file: a herd appends thousands of lines in seconds."""
        if self._file < 0:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            self._close = weakref.finalize(self, os.close, self._file)
        return self._file

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise StateError(f"{path}: cannot be read: {error.strerror}") from None
        for line in lines[-MOST_GRANTS:]:
            try:
                worker, incarnation, public_key = _lines.decode(line)
            except UNREADABLE:  # cut short by a full disk, or by the end of the Weaver
                continue
            self._key_of[worker, incarnation] = public_key
        self._on_file = len(lines)
        if len(lines) != len(self._key_of):
            self._write(path)

    def _write(self, path: Path) -> None:
        """Rewrite the file with the remembered grants."""
        self._close()
        self._file = -1
        self._torn = b""
        text = b"".join(_line(process, key) for process, key in self._key_of.items())
        try:
            write_private(path, text.decode())
        except StateError as error:
            self._limited_log.add("", str(error))
        self._on_file = len(self._key_of)


def _line(process: Incarnation, public_key: str) -> bytes:
    return msgspec.json.encode((*process, public_key)) + b"\n"
