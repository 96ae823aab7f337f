"""Which errand a note is a piece of: one that the Weaver has asked that life of a worker for."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from torchloom_core.trajectory.layout import Line
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.trajectory.reader import lives
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.errand import Told
from torchloom_core.wire.events import CommandLife
from torchloom_core.wire.messages import Note

_MOST_ASKED = 64
_MOST_EARLY, _MOST_WORKERS = 8, 64
"""Notes of a worker that are kept before it is known who was asked, and workers of whom some are:
no one worker can have those of others forgotten."""


class _Whose(NamedTuple):
    command: str
    worker: str
    incarnation: int
    verb: str


class Errands:
    """Gives the newest errand of each kind its pieces, and nobody else's.

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

    def asked(self, command: str, worker: str, incarnation: int, verb: str, errand: str) -> None:
        """Take that the Weaver has told a life of a worker to do something, of any verb.

        ``errand`` is the verdict that it comes from, which several commands may have in common.
        """
        whose = _Whose(command, worker, incarnation, verb)
        if verb not in self._verbs or whose in self._asked:
            return
        if len(self._asked) == _MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        numbers = {known: number for number, known in self._asked.values()}
        self._asked[whose] = numbers.get(errand, self._number + 1), errand
        self._number = max(self._asked[whose][0], self._number)
        for note in self._early.pop(worker, ()):
            self.take(note)

    def told(self, life: CommandLife) -> None:
        """Take what the Weaver tells of any command."""
        if isinstance(life.incarnation, int):
            self.asked(life.command, life.worker, life.incarnation, life.verb, life.cause)

    def take(self, note: Note) -> None:
        """Take any note: a piece of the newest errand is given to it, of an older one is not."""
        pieces = self._by_note.get(note.kind)
        if pieces is None:
            return
        try:
            told = msgspec.convert(note.fields, Told)
        except UNREADABLE:
            return
        whose = _Whose(told.command, note.worker, note.incarnation, pieces.verb)
        if whose not in self._asked:
            self._keep(msgspec.structs.replace(note, fields=msgspec.structs.asdict(told)))
            return
        number, errand = self._asked[whose]
        if number >= self._newest[note.kind]:
            self._newest[note.kind] = number
            parts = sum(of == errand for _, of in self._asked.values())
            pieces.take(note, errand, parts)

    def _keep(self, note: Note) -> None:
        if note.worker not in self._early and len(self._early) == _MOST_WORKERS:
            self._early.popitem(last=False)
        self._early.setdefault(note.worker, deque(maxlen=_MOST_EARLY)).append(note)


def newest_recorded(root: Path, *kinds: Pieces) -> None:
    """Give each kind the errand that was begun last in a trajectory, if one was.

    Lives are read from the newest back to those in which the errands were begun.

    Raises
    ------
    StateError
        If it cannot be read.
    """
    notes, verbs = {pieces.kind for pieces in kinds}, {pieces.verb for pieces in kinds}
    told, begun = list[Note | CommandLife](), set[str]()
    for life in reversed(lives(root)):
        of_life = [
            one
            for one in _told(life.lines())
            if (one.kind in notes if isinstance(one, Note) else one.verb in verbs)
        ]
        told = of_life + told
        begun |= {
            one.command
            for one in of_life
            if isinstance(one, CommandLife) and one.status == "issued"
        }
        if notes == {
            one.kind for one in told if isinstance(one, Note) and one.fields.get("command") in begun
        }:
            break
    errands = Errands(*kinds)
    for one in told:
        if isinstance(one, Note):
            errands.take(one)
        else:
            errands.told(one)


def _told(lines: Iterable[Line]) -> Iterable[Note | CommandLife]:
    for line in lines:
        if line.kind in ("note", "command_life"):
            try:
                yield msgspec.json.decode(line.body, type=Note | CommandLife)
            except UNREADABLE:
                continue
