"""What an errand's pieces add up to, as they come or as they stand in a record."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import msgspec

from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.errand import MOST_TEXT, End
from torchloom_core.wire.messages import Note


class Pieces(ABC):
    """What has come so far of the newest errand of a kind.

    Attributes
    ----------
    kind : str
        Of the notes that bring the pieces.
    verb : str
        Of the commands that ask for them.
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
    verb: ClassVar[str]
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
        text = str(fields.get("piece"))
        if len(text) > MOST_TEXT:
            return
        try:
            piece = msgspec.json.decode(text, type=self.piece)
        except UNREADABLE:
            return
        if (command, note.worker) != (self.command, self.worker):
            self._begin(command, note.worker)
        elif self.end is not None:
            return  # what is said of it afterwards turns no verdict
        self.points, self.of = points, of
        self.version += 1
        if isinstance(piece, End):
            self.end = piece
        else:
            self.add(piece)
