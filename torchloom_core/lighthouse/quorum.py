"""Who forms the next quorum: torchft's rules, and what may be said beside them.

Pure: time comes with every call, seconds of a monotonic clock. Where nobody steers, the same
requests and heartbeats at the same times give the same quorums as torchft's own lighthouse
(``quorum_compute`` in its ``lighthouse.rs``, which ``tests/lighthouse`` compares it with).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import msgspec

from torchloom_core.wire.steering import (
    MAX_REPLICAS,
    Act,
    Evict,
    Expect,
    HoldBack,
    Leave,
    Order,
    Replicas,
    name_of_replica,
)

_ASIDE_S = 0.5
"""A heartbeat that was on its way when its group was set aside says nothing."""

_MOST_ASIDE = 1000
"""Each life of a group that leaves has a replica id of its own, which never comes again."""

_SILENT_S = 0.3
"""How long others wait before it is said who does not ask."""


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
    """

    quorum_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    members: Replicas | None = None
    aside: Replicas = ()
    held: Replicas = ()
    order: Replicas = ()


class Electorate:
    """Everybody a lighthouse knows, and the last quorum.

    Attributes
    ----------
    quorum_id : int
        Of the last quorum.
    members : frozenset of str, optional
        Who was in it; None before the first.
    heartbeats : dict of str to float
        When each healthy group was last heard, the oldest first.
    asking : dict of str to Member
        Who waits for a quorum, the one that has waited longest first.
    order : tuple of str
        Names in the order in which ranks go to them; empty: as torchft has it.
    """

    def __init__(self, rules: Rules, kept: Kept, now_s: float) -> None:
        self._rules = rules
        self.quorum_id = kept.quorum_id
        self.members = None if kept.members is None else frozenset(kept.members)
        self.order: tuple[str, ...] = kept.order
        self._held = frozenset(kept.held)
        # Who trained when the last life ended has one timeout to say that it still does.
        self.heartbeats = dict.fromkeys(kept.members or (), now_s)
        self.asking: dict[str, Member] = {}
        self.waiting_held: dict[str, float] = {}
        self._aside = dict.fromkeys(kept.aside, now_s)
        self._lost: set[str] = set()
        self._expected: frozenset[str] = frozenset()
        self._expected_until_s = now_s

    # --- what Managers say ---

    def has_room_for(self, replica_id: str, now_s: float) -> bool:
        """Return whether one more may be known."""
        if replica_id in self.heartbeats or replica_id in self.asking:
            return True
        self._forget(now_s)
        return len(self.heartbeats) + len(self.waiting_held) < MAX_REPLICAS

    def beat(self, replica_id: str, now_s: float) -> None:
        """Take note that a group lives."""
        if replica_id in self._aside:
            waits = replica_id in self.asking
            if not waits or now_s - self._aside[replica_id] < _ASIDE_S:
                return
            del self._aside[replica_id]  # it lives after all, and waits for us
        self._heard(replica_id, now_s)

    def ask(self, member: Member, now_s: float) -> None:
        """Take note that a group lives, and wants to be in the next quorum."""
        self._aside.pop(member.replica_id, None)
        self._lost.discard(member.replica_id)
        self._heard(member.replica_id, now_s)
        self.ask_again(member, now_s)

    def ask_again(self, member: Member, now_s: float) -> None:
        """Have a group that the last quorum left out wait for the next."""
        self.asking.pop(member.replica_id, None)
        self.asking[member.replica_id] = replace(member, asked_s=now_s)

    def withdraw(self, replica_id: str) -> None:
        """Forget a request whose caller does not wait any more."""
        self.asking.pop(replica_id, None)

    def lose(self, replica_id: str) -> None:
        """Count a group out at once: its process has ended, or it said that it goes."""
        self.heartbeats.pop(replica_id, None)
        self.waiting_held.pop(replica_id, None)
        self.asking.pop(replica_id, None)
        if self.members and replica_id in self.members:
            self._lost.add(replica_id)

    def _heard(self, replica_id: str, now_s: float) -> None:
        table = self.waiting_held if self.is_held(replica_id) else self.heartbeats
        table.pop(replica_id, None)
        table[replica_id] = now_s

    # --- what the Weaver says ---

    def is_held(self, replica_id: str) -> bool:
        """Return whether a group stays out until it is admitted."""
        return bool(self._held) and name_of_replica(replica_id) in self._held

    def steer(self, act: Act, now_s: float) -> str:
        """Do what the Weaver says, or return why not."""
        match act:
            case Leave(replicas=replicas):
                self._set_aside(replicas, now_s)
            case Evict(replicas=replicas, quorum_id=quorum_id):
                if quorum_id != self.quorum_id:
                    return f"need the id of the last quorum, {self.quorum_id}, was {quorum_id}"
                strangers = set(replicas) - (self.members or frozenset())
                if strangers:
                    return f"need members of quorum {quorum_id}, was {min(strangers)!r}"
                self._set_aside(replicas, now_s)
            case HoldBack(names=names):
                self._hold(names)
            case Order(names=names):
                self.order = names
            case Expect(names=names, above=above, for_s=for_s):
                if self.members is not None:
                    return f"need a lighthouse without a quorum, was at {self.quorum_id}"
                self.quorum_id = max(self.quorum_id, above)
                self.expect(names, now_s + for_s)
        return ""

    def expect(self, names: Iterable[str], until_s: float) -> None:
        """Form no quorum before somebody of each name is there, or the time is over."""
        self._expected, self._expected_until_s = frozenset(names), until_s

    def _set_aside(self, replicas: Iterable[str], now_s: float) -> None:
        for replica_id in replicas:
            waiting = self.asking.get(replica_id)
            self.lose(replica_id)
            self._aside[replica_id] = now_s
            if waiting is not None:
                self.asking[replica_id] = waiting
        while len(self._aside) > _MOST_ASIDE:
            del self._aside[next(iter(self._aside))]

    def _hold(self, names: Iterable[str]) -> None:
        self._held = frozenset(names)
        known = sorted({**self.heartbeats, **self.waiting_held}.items(), key=lambda item: item[1])
        self.heartbeats, self.waiting_held = {}, {}
        for replica_id, heard_s in known:
            self._heard(replica_id, heard_s)

    # --- the quorum ---

    def form(self, now_s: float) -> Quorum | None:
        """Return the quorum that can be formed now, and make it the last one."""
        if not self._may_be_ready(now_s):
            return None
        members, _ = self._chosen(now_s)
        if members is None:
            return None
        ids = frozenset(member.replica_id for member in members)
        if ids != self.members or any(member.commit_failures > 0 for member in members):
            self.quorum_id += 1
        self.members = ids
        self._lost.clear()
        self.asking.clear()
        return Quorum(self.quorum_id, members, ids)

    def why(self, now_s: float) -> str:
        """Return in a sentence how far the next quorum is."""
        return self._chosen(now_s)[1]

    def _may_be_ready(self, now_s: float) -> bool:
        """Look in passing whether a quorum is possible: most requests of a round are not the last.

        Each of these has to hold for one of the three ways to a quorum.
        """
        if not self.asking:
            return False
        self._forget(now_s)
        asking = len(self.asking)
        return (
            (self.members is not None and asking >= len(self.members))
            or asking >= len(self.heartbeats)
            or self.waiting_s(now_s) >= self._rules.join_timeout_s
        )

    def _chosen(self, now_s: float) -> tuple[tuple[Member, ...] | None, str]:
        """Return torchft's ``quorum_compute``: the members or None, and why."""
        self._forget(now_s)
        rules, healthy, last = self._rules, self.heartbeats, self.members
        present = [m for m in self.asking.values() if m.replica_id in healthy]
        chosen = sorted(present, key=lambda member: member.replica_id)
        count = f"{len(present)} of {len(healthy)} healthy replica groups ask"
        missing = self._missing(now_s)
        if missing:
            return None, f"{count}; waiting for {', '.join(missing)}, which is expected"
        if last is not None:
            if any(member.shrink_only for member in present):
                chosen = [member for member in chosen if member.replica_id in last]
            if last.issubset(member.replica_id for member in present):
                return tuple(chosen), f"{count}: all of the last quorum"
        if len(present) < rules.min_replicas:
            return None, f"{count}; need min_replicas = {rules.min_replicas}"
        if len(present) <= len(healthy) // 2:
            return None, f"{count}; need more than half"
        first_s = min((member.asked_s for member in present), default=now_s)
        late = len(healthy) - len(present)
        if late and now_s - first_s < rules.join_timeout_s:
            left_s = rules.join_timeout_s - (now_s - first_s)
            return None, f"{count}; waiting {left_s:.1f} s at most for the other {late}"
        return tuple(chosen), f"{count}: enough"

    def _missing(self, now_s: float) -> list[str]:
        if self.members is not None or now_s >= self._expected_until_s:
            return []
        return sorted(self._expected - {name_of_replica(name) for name in self.asking})

    def _forget(self, now_s: float) -> None:
        """Forget whoever has been silent for the heartbeat timeout; it counts for nothing."""
        oldest_s = now_s - self._rules.heartbeat_timeout_s
        for table in (self.heartbeats, self.waiting_held):
            while table:
                replica_id, heard_s = next(iter(table.items()))
                if heard_s > oldest_s:
                    break
                del table[replica_id]

    # --- what it looks like ---

    def kept(self) -> Kept:
        """Return what the next life must know."""
        return Kept(
            quorum_id=self.quorum_id,
            members=None if self.members is None else tuple(sorted(self.members)),
            aside=self.aside,
            held=tuple(sorted(self._held)),
            order=self.order,
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """Who was evicted or has left, and has not asked again."""
        return tuple(sorted(self._aside))

    @property
    def held(self) -> tuple[str, ...]:
        """Who is there and held back."""
        return tuple(sorted(self.waiting_held))

    @property
    def lost(self) -> tuple[str, ...]:
        """Members of the last quorum that have been counted out since."""
        return tuple(sorted(self._lost))

    def waiting_s(self, now_s: float) -> float:
        """Return for how long somebody has been waiting for a quorum, seconds."""
        asked = (m.asked_s for r, m in self.asking.items() if r in self.heartbeats)
        return now_s - next(asked, now_s)

    def failed(self) -> tuple[str, ...]:
        """Return who asks since its last step failed."""
        return tuple(sorted(r for r, m in self.asking.items() if m.commit_failures > 0))

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Return the members that have not asked although others have waited for some time."""
        if self.members is None or self.waiting_s(now_s) < _SILENT_S:
            return ()
        return tuple(sorted(self.members - self.asking.keys() - self._lost))
