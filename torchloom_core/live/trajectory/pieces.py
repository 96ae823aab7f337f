"""Put a standby task's result together from its pieces, live or from a record."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

import msgspec

from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.messages import Note
from torchloom_core.wire.standby_task import End, PieceNote


class Pieces(ABC):
    """The pieces so far of the newest standby task of a kind; several standbys may share it.

    ``kind`` is that of the notes with the pieces, ``verb`` that of the commands that request them,
    ``piece`` the type of a decoded one. ``version`` changes with each new piece, ``restarts`` when
    earlier ones no longer count. ``standby_task`` is the verdict that the commands come from, empty
    before the first piece; ``commands`` has the reporting worker of each command.
    """

    kind: ClassVar[str]
    verb: ClassVar[str]
    piece: ClassVar[Any]

    def __init__(self) -> None:
        self.version = self.restarts = 0
        self._begin("")

    def _begin(self, standby_task: str) -> None:
        self.restarts += 1
        self.standby_task = standby_task
        self.commands: dict[str, str] = {}
        self._parts = 1
        self._progress: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, End] = {}
        self.reset()

    @property
    def parts(self) -> int:
        """Number of standbys that report on it, as far as known."""
        return self._parts

    @property
    def worker(self) -> str:
        """The reporting workers, separated by commas; empty before the first piece."""
        return ", ".join(sorted(self.commands.values()))

    @property
    def command(self) -> str:
        """The first command with a piece, empty before."""
        return next(iter(self.commands), "")

    @property
    def points(self) -> int:
        """Number of computed losses."""
        return sum(points for points, _ in self._progress.values())

    @property
    def of(self) -> int:
        """Approximate number of losses at the end."""
        return sum(of for _, of in self._progress.values())

    @property
    def end(self) -> End | None:
        """The combined end of all parts, None before the last has ended."""
        if len(self._ends) < self.parts:
            return None
        ends = self._ends.values()
        return End(
            points=sum(end.points for end in ends),
            seconds=max(end.seconds for end in ends),
            why="; ".join(dict.fromkeys(end.why for end in ends if end.why)),
        )

    def take_over(self, other: Self) -> None:
        """Take over the state of another instance with more pieces, or a newer standby task."""
        version, restarts = self.version + 1, self.restarts + 1
        vars(self).update(vars(other))
        self.version, self.restarts = version, restarts

    @abstractmethod
    def reset(self) -> None:
        """Reset for the pieces of another standby task."""

    @abstractmethod
    def add(self, piece: Any, command: str) -> None:
        """Add a piece that is not the last of a command."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""

    def take(self, note: Note, standby_task: str, parts: int = 1) -> None:
        """Take a note with a piece of one of ``parts`` standbys; that of another task resets."""
        if note.kind != self.kind:
            return
        try:
            progress = msgspec.convert(note.fields, PieceNote)
            piece = msgspec.json.decode(progress.piece, type=self.piece)
        except UNREADABLE:
            return
        if standby_task != self.standby_task:
            self._begin(standby_task)
        self._parts = max(self._parts, parts)
        if progress.command in self._ends:
            return  # pieces after the end are ignored
        self.commands[progress.command] = note.worker
        self._progress[progress.command] = progress.points, progress.of
        self.version += 1
        if isinstance(piece, End):
            self._ends[progress.command] = piece
        else:
            self.add(piece, progress.command)
