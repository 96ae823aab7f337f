"""What a standby task's pieces add up to, as they come or as they stand in a record."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import msgspec

from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.messages import Note
from torchloom_core.wire.standby_task import End, PieceNote


class Pieces(ABC):
    """The pieces so far of the newest standby task of a kind; several standbys may share it.

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
    beginnings : int
        Another number whenever all of it is to be looked at anew.
    standby task : str
        The verdict that the commands come from, empty before the first piece.
    commands : dict of str to str
        Who tells of it, by the command.
    """

    kind: ClassVar[str]
    verb: ClassVar[str]
    piece: ClassVar[Any]

    def __init__(self) -> None:
        self.version = self.beginnings = 0
        self._begin("")

    def _begin(self, standby_task: str) -> None:
        self.beginnings += 1
        self.standby_task = standby_task
        self.commands: dict[str, str] = {}
        self._parts = 1
        self._progress: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, End] = {}
        self.forget()

    @property
    def parts(self) -> int:
        """How many standbys tell of it, as far as it is known."""
        return self._parts

    @property
    def worker(self) -> str:
        """Who tells of it, with commas between; empty before the first piece."""
        return ", ".join(sorted(self.commands.values()))

    @property
    def command(self) -> str:
        """The first command of which something was told, empty before."""
        return next(iter(self.commands), "")

    @property
    def points(self) -> int:
        """How often a loss was computed."""
        return sum(points for points, _ in self._progress.values())

    @property
    def of(self) -> int:
        """About how often it will be."""
        return sum(of for _, of in self._progress.values())

    @property
    def end(self) -> End | None:
        """What was told at the end of all its parts, None before."""
        if len(self._ends) < self.parts:
            return None
        ends = self._ends.values()
        return End(
            points=sum(end.points for end in ends),
            seconds=max(end.seconds for end in ends),
            why="; ".join(dict.fromkeys(end.why for end in ends if end.why)),
        )

    def become(self, other: Self) -> None:
        """Be what another has, which knows more of a standby task, or of a newer one."""
        version, beginnings = self.version + 1, self.beginnings + 1
        vars(self).update(vars(other))
        self.version, self.beginnings = version, beginnings

    @abstractmethod
    def forget(self) -> None:
        """Begin anew: the pieces of another standby task come."""

    @abstractmethod
    def add(self, piece: Any, command: str) -> None:
        """Take a piece that is not the last of a command."""

    @abstractmethod
    def for_machines(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""

    def take(self, note: Note, standby_task: str, parts: int = 1) -> None:
        """Take a note that brings a piece of a standby task: the first of another begins anew.

        What brings none is passed over. ``parts`` standbys were asked for it, or more.
        """
        if note.kind != self.kind:
            return
        try:
            told = msgspec.convert(note.fields, PieceNote)
            piece = msgspec.json.decode(told.piece, type=self.piece)
        except UNREADABLE:
            return
        if standby_task != self.standby_task:
            self._begin(standby_task)
        self._parts = max(self._parts, parts)
        if told.command in self._ends:
            return  # what is said afterwards turns no verdict
        self.commands[told.command] = note.worker
        self._progress[told.command] = told.points, told.of
        self.version += 1
        if isinstance(piece, End):
            self._ends[told.command] = piece
        else:
            self.add(piece, told.command)
