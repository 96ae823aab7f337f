"""Requests for a quorum, quorums, the rules, the saved state, and the last quorum after a restart.

A lighthouse may end after it has answered only some members of a quorum. Those train and wait for
the others, which request a quorum again: they need the same quorum.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from torchloom_core.wire.limits import Count
from torchloom_core.wire.steering import Replicas

_OTHERS_S = 1.0
"""How long the remaining members have to send a heartbeat once most have; also how long to wait
for requests before members without one count as answered."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of torchft's own lighthouse; times in seconds."""

    min_replicas: int = 1
    join_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """One replica group's request: its bytes, and the fields that the rules use."""

    raw: bytes
    replica_id: str
    step: int = 0
    shrink_only: bool = False
    commit_failures: int = 0
    requested_s: float = 0.0


class Quorum(NamedTuple):
    """A formed quorum; members are sorted by replica id."""

    quorum_id: int
    members: tuple[Member, ...]
    ids: frozenset[str]


class SavedState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state that a lighthouse leaves to its next process; ``members`` are None at first.

    ``is_reordered``: the order has changed since the last quorum, so the next gets a new id, and
    all members reconfigure their process groups.
    """

    quorum_id: Count
    members: Replicas | None = None
    aside: Replicas = ()
    held: Replicas = ()
    order: Replicas = ()
    is_reordered: bool = False


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
        """Return its members if each repeats its request, or waits for others in the step."""
        if not self._requests or self._missing_members or waiting_s < _OTHERS_S:
            return None
        again = [requests[replica_id] for replica_id in self._members if replica_id in requests]
        if not again or any(m.raw != self._requests[m.replica_id].raw for m in again):
            return None
        return tuple(self._requests[replica_id] for replica_id in sorted(self._members))
