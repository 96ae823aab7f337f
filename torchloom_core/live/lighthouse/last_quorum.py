"""The last quorum of a lighthouse's previous process, for members that were not answered.

A lighthouse may end after it has answered only some members of a quorum. Those train and wait for
the others, which request a quorum again: they need the same quorum.
"""

from collections.abc import Iterable, Mapping

from torchloom_core.live.lighthouse.membership import Member

_OTHERS_S = 1.0
"""How long the remaining members have to send a heartbeat once most have; also how long to wait
for requests before members without one count as answered."""


class LastQuorum:
    """The previous process's last quorum, until this one forms one; no ``requests`` if unknown."""

    def __init__(self, members: Iterable[str], requests: Iterable[Member]) -> None:
        self._members = frozenset(members)
        self._missing_members = set(self._members)
        self._majority_s: float | None = None
        by_id = {member.replica_id: member for member in requests}
        self._requests = by_id if by_id.keys() == self._members else {}

    def beat(self, replica_id: str, now_s: float) -> None:
        """Note that a group is alive."""
        self._missing_members.discard(replica_id)
        if self._majority_s is None and 2 * len(self._missing_members) < len(self._members):
            self._majority_s = now_s

    def late(self, now_s: float) -> frozenset[str]:
        """Return the members that probably ended: most others have been alive for a while."""
        if self._majority_s is None or now_s - self._majority_s < _OTHERS_S:
            return frozenset()
        return frozenset(self._missing_members)

    def unanswered(
        self, requests: Mapping[str, Member], waiting_s: float
    ) -> tuple[Member, ...] | None:
        """Return the members of the last quorum if it is still valid for the groups that wait.

        It is valid while each member either repeats its request, or is alive without a request:
        that one was answered, and waits for the others in the step.
        """
        if not self._requests or self._missing_members or waiting_s < _OTHERS_S:
            return None
        again = [requests[replica_id] for replica_id in self._members if replica_id in requests]
        if not again or any(m.raw != self._requests[m.replica_id].raw for m in again):
            return None
        return tuple(self._requests[replica_id] for replica_id in sorted(self._members))
