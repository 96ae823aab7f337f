"""What a lighthouse owes to those whom the last life's quorum was formed of.

A lighthouse may end after it has answered some members of a quorum and not all. Those that were
answered train and wait for the others, who ask again: for the very quorum that was formed.
"""

from collections.abc import Iterable, Mapping

from torchloom_core.lighthouse.membership import Member

_OTHERS_S = 1.0
"""Once most members are there: how long the others have to say that they live, too; and how long
to wait for the rest of a quorum to ask again before some are taken for answered."""


class LastIncarnation:
    """The members of the last life's quorum, until one is formed in this life.

    Parameters
    ----------
    members : iterable of str
        Who was in it.
    requests : iterable of Member
        What they had asked; nothing where that is not known.
    """

    def __init__(self, members: Iterable[str], requests: Iterable[Member]) -> None:
        self._members = frozenset(members)
        self._unheard = set(self._members)
        self._most_heard_s: float | None = None
        known = {member.replica_id: member for member in requests}
        self._requests = known if known.keys() == self._members else {}

    def heard(self, replica_id: str, now_s: float) -> None:
        """Take note that a group lives."""
        self._unheard.discard(replica_id)
        if self._most_heard_s is None and 2 * len(self._unheard) < len(self._members):
            self._most_heard_s = now_s

    def late(self, now_s: float) -> frozenset[str]:
        """Return who has ended, by all that is known: most others have been there for a while."""
        if self._most_heard_s is None or now_s - self._most_heard_s < _OTHERS_S:
            return frozenset()
        return frozenset(self._unheard)

    def formed_of(
        self, asking: Mapping[str, Member], waiting_s: float
    ) -> tuple[Member, ...] | None:
        """Return the members of the last quorum if those who ask were not answered and it holds.

        It holds while every member either asks what it had asked, or lives and does not ask: it
        was answered, and waits for the others in the step.
        """
        if not self._requests or self._unheard or waiting_s < _OTHERS_S:
            return None
        again = [asking[replica_id] for replica_id in self._members if replica_id in asking]
        if not again or any(m.raw != self._requests[m.replica_id].raw for m in again):
            return None
        return tuple(self._requests[replica_id] for replica_id in sorted(self._members))
