"""Assign notes to standby tasks, by the commands that the Weaver sent."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchloom_core.live.trajectory.layout import Line
from torchloom_core.live.trajectory.pieces import Pieces
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.messages import Note
from torchloom_core.wire.standby_task import PieceNote

_MOST_COMMANDS = 64
_MOST_EARLY, _MOST_WORKERS = 8, 64
"""Notes per worker that are stored before their command is known, and workers with such notes:
one worker cannot displace the notes of others."""


class _Command(NamedTuple):
    command: str
    worker: str
    incarnation: int
    verb: str


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
        key = _Command(command, worker, incarnation, verb)
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
        key = _Command(progress.command, note.worker, note.incarnation, pieces.verb)
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
