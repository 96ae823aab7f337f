"""The quorum of each worker, as reported, and the replica ids of groups in the lighthouse."""

from collections.abc import Iterable, Sequence

import numpy as np

from torchloom_core.interface.view_parts import LighthouseRows
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.steering import LighthouseView

_AMBIGUOUS = ""


class Quorums:
    """The quorums that the present incarnations of workers report.

    ``hellos`` has the last hello of each row.
    """

    def __init__(self, hellos: Sequence[Hello]) -> None:
        self._hellos = hellos
        self._group_of: dict[str, str] = {}

    def register(self, hello: Hello, before: Hello | None) -> None:
        """Add a worker's hello, given its hello before."""
        if before and before.replica_id != hello.replica_id:
            self._group_of.pop(before.replica_id, None)
        if self._group_of.setdefault(hello.replica_id, hello.group) != hello.group:
            self._group_of[hello.replica_id] = _AMBIGUOUS  # two groups report the same id

    def forget(self, hello: Hello) -> None:
        """Forget the replica id of a worker's last hello."""
        self._group_of.pop(hello.replica_id, None)

    def seen_by(self, seen: LighthouseView) -> LighthouseRows:
        """Return the lighthouse's view by row."""
        found = [self._present(row) for row in range(len(self._hellos))]
        replicas = [one.replica_id if one else "" for one in found]
        member, failed, silent, lost = (
            np.fromiter(map(set(named).__contains__, replicas), bool, len(replicas))
            for named in (seen.members, seen.failed, seen.silent, seen.lost)
        )
        return LighthouseRows(seen.quorum_id, seen.waiting_s, member, failed, silent, lost)

    def latest(self, rows: Iterable[int]) -> int:
        """Return the latest quorum of these rows, -1 if unknown."""
        return max((one.quorum_id for one in self._all(rows)), default=-1)

    def replicas(self, rows: Iterable[int]) -> set[str]:
        """Return the replica ids of the groups of these rows, where known."""
        return {one.replica_id for one in self._all(rows)}

    def _all(self, rows: Iterable[int]) -> Iterable[Hello]:
        return filter(None, map(self._present, rows))

    def _present(self, row: int) -> Hello | None:
        hello = self._hellos[row]
        has_quorum = hello.replica_id and hello.quorum_id >= 0
        is_own = self._group_of.get(hello.replica_id) == hello.group
        return hello if has_quorum and is_own else None
