"""Follow the growing files of an epoch on one host, and repeat them on another.

Whatever their format, the files that the writer appends to only grow, but for a failed write that
is undone: the bytes of a copy are those of the original. A copy that has a gap is not continued.
Parts are sealed, thinned and deleted on each host by its own rules.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from torchloom_core.live.trajectory.layout import META, SEALED, UNSEALED, epoch_folder
from torchloom_core.live.transport.record_stream import PIECE_BYTES, Piece

_GROWING = ("events-*.jsonl", UNSEALED)


class GrowingFiles:
    """The files of one epoch, and how far each was read.

    Reading starts with the last part of each kind: the first standby needs the end of the record,
    not hours of it. A part stays open until it was read, as it may be sealed or deleted meanwhile.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        self._folder = folder
        self._epoch = epoch
        self._open: dict[str, BinaryIO] = {}
        self._read: dict[str, int] = {}
        for pattern in _GROWING:
            for path in sorted(folder.glob(pattern))[:-1]:
                self._read[path.name] = -1

    def next_pieces(self, most: int) -> list[Piece]:
        """Return the next pieces, ``most`` at most, in the files' order; :meth:`done` moves on."""
        found: list[Piece] = []
        for pattern in (META, *_GROWING):
            names = self._names(pattern)
            for number, name in enumerate(names):
                pieces = self._pieces(name, most - len(found))
                found += pieces
                if not pieces and number < len(names) - 1:  # a later part exists: it is complete
                    self._open.pop(name).close()
                    self._read[name] = -1
        return found

    def done(self, piece: Piece) -> None:
        """Go on after a piece."""
        self._read[piece.file] = piece.offset + len(piece.data)

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.popitem()[1].close()

    def _names(self, pattern: str) -> list[str]:
        """Return the files that are open or new, in order."""
        for path in self._folder.glob(pattern):
            if path.name not in self._open and self._read.get(path.name, 0) >= 0:
                with suppress(FileNotFoundError):
                    self._open[path.name] = path.open("rb")
        return sorted(name for name in self._open if Path(name).match(pattern))

    def _pieces(self, name: str, most: int) -> list[Piece]:
        file, offset = self._open[name], self._read.get(name, 0)
        size = os.fstat(file.fileno()).st_size
        cut, offset = size < offset, min(size, offset)
        file.seek(offset)
        found: list[Piece] = []
        while len(found) < most and ((data := file.read(PIECE_BYTES)) or cut):
            found.append(Piece(epoch=self._epoch, file=name, offset=offset, data=data, cut=cut))
            offset, cut = offset + len(data), False
        return found


class Copies:
    """The copied epochs under ``root``; the one that grows is locked, as if its Weaver ran here."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._growing = 0
        self._lock = -1

    def write(self, piece: Piece) -> bool:
        """Append to a copy what is new in a piece; return False if there is a gap before it."""
        folder = epoch_folder(self._root, piece.epoch)
        path = folder / piece.file
        if path.with_suffix(SEALED).exists():
            return True  # it was copied before
        size = path.stat().st_size if path.exists() else 0
        if size < piece.offset:
            return False
        if piece.cut and size > piece.offset:
            os.truncate(path, piece.offset)
            size = piece.offset
        if new := piece.data[size - piece.offset :]:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(new)
        if piece.file == META and piece.epoch > self._growing:
            self._hold(piece.epoch, path)
        return True

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _hold(self, epoch: int, meta: Path) -> None:
        self.close()
        self._growing = epoch
        self._lock = os.open(meta, os.O_RDONLY)
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
