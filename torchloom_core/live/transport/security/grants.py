"""The key that each incarnation was granted to; stored, since credentials are never revoked."""

import logging
import os
from pathlib import Path

import msgspec

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import write_private
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_MOST_GRANTS = 200_000
"""Maximum number of grants; the oldest are forgotten. The file is rewritten at twice as many."""

Incarnation = tuple[str, int]
"""Worker and incarnation."""

_lines = msgspec.json.Decoder(tuple[str, int, str])


class Grants:
    """The newest grants; with a path also those of earlier Weavers, one JSON line each.

    StateError if the file exists and cannot be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._key_of: dict[Incarnation, str] = {}
        self._on_file = 0
        self._limited_log = RateLimitedLog(_log)
        if path is not None:
            self._read(path)

    def key_of(self, process: Incarnation) -> str | None:
        """Return the key that the incarnation was granted to, if any."""
        return self._key_of.get(process)

    def add(self, process: Incarnation, public_key: str) -> None:
        """Note that the incarnation was granted to the key; a failed write is logged."""
        if self._key_of.get(process) == public_key:
            return
        self._key_of[process] = public_key
        if len(self._key_of) > _MOST_GRANTS:
            del self._key_of[next(iter(self._key_of))]
        if self._path is None:
            return
        try:
            with open(self._path, "ab", opener=_private) as file:
                file.write(_line(process, public_key))
        except OSError as error:
            self._limited_log.add("", f"{self._path}: cannot be written: {error.strerror}")
        self._on_file += 1
        if self._on_file > 2 * _MOST_GRANTS:
            self._write(self._path)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as error:
            raise StateError(f"{path}: cannot be read: {error.strerror}") from None
        for line in lines[-_MOST_GRANTS:]:
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
        text = b"".join(_line(process, key) for process, key in self._key_of.items())
        try:
            write_private(path, text.decode())
        except StateError as error:
            self._limited_log.add("", str(error))
        self._on_file = len(self._key_of)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _line(process: Incarnation, public_key: str) -> bytes:
    return msgspec.json.encode((*process, public_key)) + b"\n"
