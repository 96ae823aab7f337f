"""Who asks for a quorum, who is in it, by which rules, and what is kept of it."""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from torchloom_core.wire.limits import Count
from torchloom_core.wire.steering import Replicas


@dataclass(frozen=True, slots=True)
class Rules:
    """torchft's own settings, as its lighthouse has them, in seconds."""

    min_replicas: int = 1
    join_timeout_s: float = 60.0
    heartbeat_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """One replica group's request: as it was written, and what the rules look at."""

    raw: bytes
    replica_id: str
    step: int = 0
    shrink_only: bool = False
    commit_failures: int = 0
    asked_s: float = 0.0


class Quorum(NamedTuple):
    """A quorum that was formed; members by replica id."""

    quorum_id: int
    members: tuple[Member, ...]
    ids: frozenset[str]


class Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the next life of a lighthouse must know.

    Attributes
    ----------
    members : tuple of str, optional
        Who is in the last quorum; None before the first.
    aside, held, order : tuple of str
        What was said of whom, as in :mod:`torchloom_core.wire.steering`.
    is_reordered : bool
        Whether the last quorum had another order: the next takes a new id, so that all configure
        their process groups by it.
    """

    quorum_id: Count
    members: Replicas | None = None
    aside: Replicas = ()
    held: Replicas = ()
    order: Replicas = ()
    is_reordered: bool = False
