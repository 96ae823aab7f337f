"""Who is in which quorum, as the workers say; and how the lighthouse calls a replica group."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from torchloom_core.plugin.view import LighthouseRows
from torchloom_core.wire.limits import MAX_COUNT, MAX_SHORT_TEXT
from torchloom_core.wire.messages import Hello, Note
from torchloom_core.wire.steering import LighthouseView


class InQuorum(NamedTuple):
    """The quorum that a life of a worker was last in, and its group's replica id there."""

    incarnation: int
    replica_id: str
    quorum_id: int


class Quorums:
    """What workers' notes of kind ``quorum`` say, the newest of each."""

    def __init__(self) -> None:
        self._of: dict[str, InQuorum] = {}

    def note(self, note: Note) -> None:
        """Take a note; one that says no quorum is passed over."""
        replica_id, quorum_id = (note.fields.get(name) for name in ("replica_id", "quorum_id"))
        if note.kind != "quorum" or not isinstance(replica_id, str) or type(quorum_id) is not int:
            return
        if 0 < len(replica_id) <= MAX_SHORT_TEXT and 0 <= quorum_id <= MAX_COUNT:
            self._of[note.worker] = InQuorum(note.incarnation, replica_id, quorum_id)

    def rows(self, seen: LighthouseView, hellos: Sequence[Hello]) -> LighthouseRows:
        """Return what the lighthouse sees of the workers that said these hellos."""
        found = [self.of(hello.worker, hello.incarnation) for hello in hellos]
        replicas = [one.replica_id if one else "" for one in found]
        member, failed, silent, lost = (
            np.fromiter(map(set(named).__contains__, replicas), bool, len(replicas))
            for named in (seen.members, seen.failed, seen.silent, seen.lost)
        )
        return LighthouseRows(seen.quorum_id, seen.waiting_s, member, failed, silent, lost)

    def of(self, worker: str, incarnation: int) -> InQuorum | None:
        """Return the quorum that this life was last in, None if it is not known."""
        found = self._of.get(worker)
        return found if found and found.incarnation == incarnation else None
