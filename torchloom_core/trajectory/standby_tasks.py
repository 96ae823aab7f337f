"""Find the standby task that a note is a piece of, by the command that the Weaver sent."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchloom_core.trajectory.layout import Line
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.trajectory.reader import read_epochs
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import CommandStatus
from torchloom_core.wire.messages import Note
from torchloom_core.wire.standby_task import PieceNote

_MOST_ASKED = 64
_MOST_EARLY, _MOST_WORKERS = 8, 64
"""Notes of a worker that are kept before it is known who was asked, and workers of whom some are:
no one worker can have those of others forgotten."""


class _Whose(NamedTuple):
    command: str
    worker: str
    incarnation: int
    verb: str


class StandbyTasks:
    """Gives the newest standby task of each kind its pieces, and nobody else's.

    Any worker can tell of a landscape that nobody has asked it for. What a worker tells before it
    is heard here that it was asked is kept until then: the two travel apart.

    Parameters
    ----------
    *kinds : Pieces
        What takes the pieces of each kind.
    """

    def __init__(self, *kinds: Pieces) -> None:
        self._by_note = {pieces.kind: pieces for pieces in kinds}
        self._verbs = {pieces.verb for pieces in kinds}
        self._asked: dict[_Whose, tuple[int, str]] = {}
        self._number = 0
        self._newest = dict.fromkeys(self._by_note, 0)
        self._early: OrderedDict[str, deque[Note]] = OrderedDict()

    def add_command(
        self, command: str, worker: str, incarnation: int, verb: str, standby_task: str
    ) -> None:
        """Take that the Weaver has told a life of a worker to do something, of any verb.

        ``standby task`` is the verdict that it comes from, which several commands may have in
        common.
        """
        whose = _Whose(command, worker, incarnation, verb)
        if verb not in self._verbs or whose in self._asked:
            return
        if len(self._asked) == _MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        numbers = {known: number for number, known in self._asked.values()}
        self._asked[whose] = numbers.get(standby_task, self._number + 1), standby_task
        self._number = max(self._asked[whose][0], self._number)
        for note in self._early.pop(worker, ()):
            self.take(note)

    def take_status(self, status: CommandStatus) -> None:
        """Take any command's status."""
        if isinstance(status.incarnation, int):
            self.add_command(
                status.command, status.worker, status.incarnation, status.verb, status.cause
            )

    def take(self, note: Note) -> None:
        """Take any note; give a piece of the newest standby task to it, ignore older ones."""
        pieces = self._by_note.get(note.kind)
        if pieces is None:
            return
        try:
            told = msgspec.convert(note.fields, PieceNote)
        except UNREADABLE:
            return
        whose = _Whose(told.command, note.worker, note.incarnation, pieces.verb)
        if whose not in self._asked:
            self._keep(msgspec.structs.replace(note, fields=msgspec.structs.asdict(told)))
            return
        number, standby_task = self._asked[whose]
        if number >= self._newest[note.kind]:
            self._newest[note.kind] = number
            parts = sum(of == standby_task for _, of in self._asked.values())
            pieces.take(note, standby_task, parts)

    def _keep(self, note: Note) -> None:
        if note.worker not in self._early and len(self._early) == _MOST_WORKERS:
            self._early.popitem(last=False)
        self._early.setdefault(note.worker, deque(maxlen=_MOST_EARLY)).append(note)


def newest_recorded(root: Path, *kinds: Pieces) -> None:
    """Give each kind the standby task that was begun last in a trajectory, if one was.

    Lives are read from the newest back to those in which the standby tasks were begun.

    Raises
    ------
    StateError
        If it cannot be read.
    """
    notes, verbs = {pieces.kind for pieces in kinds}, {pieces.verb for pieces in kinds}
    told, begun = list[Note | CommandStatus](), set[str]()
    for record in reversed(read_epochs(root)):
        of_life = [
            one
            for one in _told(record.lines())
            if (one.kind in notes if isinstance(one, Note) else one.verb in verbs)
        ]
        told = of_life + told
        begun |= {
            one.command
            for one in of_life
            if isinstance(one, CommandStatus) and one.status == "issued"
        }
        if notes == {
            one.kind for one in told if isinstance(one, Note) and one.fields.get("command") in begun
        }:
            break
    standby_tasks = StandbyTasks(*kinds)
    for one in told:
        if isinstance(one, Note):
            standby_tasks.take(one)
        else:
            standby_tasks.take_status(one)


def _told(lines: Iterable[Line]) -> Iterable[Note | CommandStatus]:
    for line in lines:
        if line.kind in ("note", "command_status"):
            try:
                yield msgspec.json.decode(line.body, type=Note | CommandStatus)
            except UNREADABLE:
                continue
