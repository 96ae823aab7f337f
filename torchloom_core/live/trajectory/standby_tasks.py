"""Put standby tasks' results together from their pieces, which the Weaver's commands assign."""

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Self

import msgspec

from torchloom_core.live.trajectory.layout import Line
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.messages import Note
from torchloom_core.wire.standby_task import End, PieceNote

_MOST_COMMANDS = 64
_MOST_EARLY, _MOST_WORKERS = 8, 64
"""Notes per worker that are stored before their command is known, and workers with such notes:
one worker cannot displace the notes of others."""


class Pieces(ABC):
    """The pieces so far of the newest standby task of a kind; several standbys may share it.

    ``kind`` is that of its notes, ``verb`` that of its commands, ``piece`` the type of a decoded
    one. ``version`` changes with each new piece, ``restarts`` when earlier ones no longer count.
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
    def contents(self) -> dict[str, Any]:
        """Return what was computed as plain dicts and lists."""

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""
        about = {"command": self.command, "worker": self.worker, "points": self.points}
        return {**about, **self.contents(), "end": self.end}

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


_Command = tuple[str, str, int, str]
"""A command's id, its worker and incarnation, and its verb."""


class StandbyTasks:
    """Gives the newest standby task of each kind its pieces, and ignores others.

    A worker may send a landscape that was not requested. A note that arrives before its command is
    stored until the command is known: the two have different paths.
    """

    def __init__(self, *kinds: Pieces) -> None:
        self._by_note = {pieces.kind: pieces for pieces in kinds}
        self._verbs = {pieces.verb for pieces in kinds}
        self._commands: dict[_Command, tuple[int, str]] = {}
        self._number = 0
        self._newest = dict.fromkeys(self._by_note, 0)
        self._early: OrderedDict[str, deque[Note]] = OrderedDict()

    def add_command(
        self, command: str, worker: str, incarnation: int, verb: str, standby_task: str
    ) -> None:
        """Note that the Weaver sent a command to an incarnation for a standby task's verdict."""
        key = command, worker, incarnation, verb
        if verb not in self._verbs or key in self._commands:
            return
        if len(self._commands) == _MOST_COMMANDS:
            del self._commands[next(iter(self._commands))]
        numbers = {task: number for number, task in self._commands.values()}
        self._commands[key] = numbers.get(standby_task, self._number + 1), standby_task
        self._number = max(self._commands[key][0], self._number)
        for note in self._early.pop(worker, ()):
            self.take(note)

    def take_status(self, status: CommandStatus) -> None:
        """Take any command's status."""
        if isinstance(status.incarnation, int):
            self.add_command(
                status.command, status.worker, status.incarnation, status.verb, status.cause
            )

    def take(self, note: Note) -> None:
        """Take any note; pass on pieces of the newest standby task, ignore older ones."""
        pieces = self._by_note.get(note.kind)
        if pieces is None:
            return
        try:
            progress = msgspec.convert(note.fields, PieceNote)
        except UNREADABLE:
            return
        key = progress.command, note.worker, note.incarnation, pieces.verb
        if key not in self._commands:
            self._add_early(msgspec.structs.replace(note, fields=msgspec.structs.asdict(progress)))
            return
        number, standby_task = self._commands[key]
        if number >= self._newest[note.kind]:
            self._newest[note.kind] = number
            parts = sum(task == standby_task for _, task in self._commands.values())
            pieces.take(note, standby_task, parts)

    def _add_early(self, note: Note) -> None:
        if note.worker not in self._early and len(self._early) == _MOST_WORKERS:
            self._early.popitem(last=False)
        self._early.setdefault(note.worker, deque(maxlen=_MOST_EARLY)).append(note)


def newest_recorded(root: Path, *kinds: Pieces) -> None:
    """Give each kind the standby task that was started last in a trajectory, if any; StateError."""
    notes, verbs = {pieces.kind for pieces in kinds}, {pieces.verb for pieces in kinds}
    messages, started = list[Note | CommandStatus](), set[str]()
    for record in reversed(read_epochs(root)):
        of_epoch = [
            message
            for message in _notes_and_statuses(record.lines())
            if (message.kind in notes if isinstance(message, Note) else message.verb in verbs)
        ]
        messages = of_epoch + messages
        started |= {
            message.command
            for message in of_epoch
            if isinstance(message, CommandStatus) and message.status == "issued"
        }
        if notes == {
            message.kind
            for message in messages
            if isinstance(message, Note) and message.fields.get("command") in started
        }:
            break
    standby_tasks = StandbyTasks(*kinds)
    for message in messages:
        if isinstance(message, Note):
            standby_tasks.take(message)
        else:
            standby_tasks.take_status(message)


def _notes_and_statuses(lines: Iterable[Line]) -> Iterable[Note | CommandStatus]:
    for line in lines:
        if line.kind in ("note", "command_status"):
            try:
                yield msgspec.json.decode(line.body, type=Note | CommandStatus)
            except UNREADABLE:
                continue
