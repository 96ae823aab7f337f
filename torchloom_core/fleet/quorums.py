"""Who is in which quorum, as the workers say; and how the lighthouse calls a replica group."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.plugin.view import LighthouseRows
from torchloom_core.wire.limits import MAX_COUNT, MAX_SHORT_TEXT
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.steering import LighthouseView

_NOBODY = ""


class InQuorum(NamedTuple):
    """The quorum that a life of a worker was last in, and its group's replica id there."""

    incarnation: int
    replica_id: str
    quorum_id: int


class Quorums:
    """What workers' notes of kind ``quorum`` say, the newest of each.

    ``hellos`` is what the worker in each row last said of itself.
    """

    def __init__(self, hellos: Sequence[Hello]) -> None:
        self._hellos = hellos
        self._of: dict[str, InQuorum] = {}
        self._group_of: dict[str, str] = {}

    def note(self, note: Note) -> None:
        """Take a note; one that says no quorum is passed over."""
        replica_id, quorum_id = (note.fields.get(name) for name in ("replica_id", "quorum_id"))
        if note.kind != "quorum" or not isinstance(replica_id, str) or type(quorum_id) is not int:
            return
        if not (0 < len(replica_id) <= MAX_SHORT_TEXT and 0 <= quorum_id <= MAX_COUNT):
            return
        group = note.worker.rpartition("-")[0]
        if self._group_of.setdefault(replica_id, group) != group:
            self._group_of[replica_id] = _NOBODY  # of two that say it is theirs one lies
            return
        known = self._of.get(note.worker)
        if known and known.replica_id != replica_id:
            self._group_of.pop(known.replica_id, None)
        self._of[note.worker] = InQuorum(note.incarnation, replica_id, quorum_id)

    def seen_by(self, seen: LighthouseView) -> LighthouseRows:
        """Return by row what the lighthouse sees."""
        found = [self._present(row) for row in range(len(self._hellos))]
        replicas = [one.replica_id if one else "" for one in found]
        member, failed, silent, lost = (
            np.fromiter(map(set(named).__contains__, replicas), bool, len(replicas))
            for named in (seen.members, seen.failed, seen.silent, seen.lost)
        )
        return LighthouseRows(seen.quorum_id, seen.waiting_s, member, failed, silent, lost)

    def of(self, rows: Iterable[int]) -> list[InQuorum]:
        """Return the quorums that the present lives of these rows were last in, where known."""
        return [found for row in rows if (found := self._present(row))]

    def replicas(self, rows: Iterable[int]) -> set[str]:
        """Return the replica ids of the groups of these rows."""
        return {one.replica_id for one in self.of(rows)}

    def _present(self, row: int) -> InQuorum | None:
        hello = self._hellos[row]
        found = self._of.get(hello.worker)
        if found is None or found.incarnation != hello.incarnation:
            return None
        return found if self._group_of.get(found.replica_id) == hello.group else None
