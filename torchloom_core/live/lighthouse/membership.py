"""Requests for a quorum, quorums, the rules, and the saved state."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from torchloom_core.wire.limits import Count
from torchloom_core.wire.steering import Replicas


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
    """The state that a lighthouse leaves to its next process.

    ``members`` of the last quorum are None before the first; ``aside``, ``held`` and ``order`` were
    set by steering. ``is_reordered``: the order has changed since the last quorum, so the next gets
    a new id, and all members reconfigure their process groups.
    """

    quorum_id: Count
    members: Replicas | None = None
    aside: Replicas = ()
    held: Replicas = ()
    order: Replicas = ()
    is_reordered: bool = False
