"""What an errand's pieces add up to, as they come or as they stand in a record."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec

from torchloom_core.trajectory.layout import Line as RecordLine
from torchloom_core.trajectory.reader import lives
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.errand import End
from torchloom_core.wire.messages import Note


class Pieces(ABC):
    """What has come so far of the newest errand of a kind.

    Attributes
    ----------
    kind : str
        Of the notes that bring the pieces.
    piece : type
        What is decoded.
    version : int
        Another number whenever there is more.
    command, worker : str
        Whose it is, empty before the first piece.
    points, of : int
        How often a loss was computed, and about how often it will be.
    """

    kind: ClassVar[str]
    piece: ClassVar[Any]

    def __init__(self) -> None:
        self.version = 0
        self._begin("", "")

    def _begin(self, command: str, worker: str) -> None:
        self.command, self.worker = command, worker
        self.points = self.of = 0
        self.end: End | None = None
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """Begin anew: the pieces of another errand come."""

    @abstractmethod
    def add(self, piece: Any) -> None:
        """Take a piece that is not the last."""

    @abstractmethod
    def for_machines(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""

    def take(self, note: Note) -> None:
        """Take a note that brings a piece: the first of another errand begins anew.

        What brings none is passed over.
        """
        fields = note.fields
        points, of, command = (fields.get(name) for name in ("points", "of", "command"))
        if note.kind != self.kind or not isinstance(command, str):
            return
        if not (isinstance(points, int) and isinstance(of, int)):
            return
        try:
            piece = msgspec.json.decode(str(fields.get("piece")), type=self.piece)
        except UNREADABLE:
            return
        if (command, note.worker) != (self.command, self.worker):
            self._begin(command, note.worker)
        self.points, self.of = points, of
        self.version += 1
        if isinstance(piece, End):
            self.end = piece
        else:
            self.add(piece)


P = TypeVar("P", bound=Pieces)


def newest_recorded(root: Path, empty: P) -> P | None:
    """Return the errand of this kind that was begun last in a trajectory, None where none was.

    Raises
    ------
    StateError
        If it cannot be read.
    """
    for life in lives(root):
        for note in _notes(life.lines(), empty.kind):
            empty.take(note)
    return empty if empty.version else None


def _notes(lines: Iterable[RecordLine], kind: str) -> Iterable[Note]:
    for line in lines:
        if line.kind == "note":
            try:
                note = msgspec.json.decode(line.body, type=Note)
            except UNREADABLE:
                continue
            if note.kind == kind:
                yield note
