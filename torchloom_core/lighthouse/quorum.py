"""Who forms the next quorum: torchft's rules, and what may be said beside them.

Pure: time comes with every call, seconds of a monotonic clock. Where nobody steers, the same
requests and heartbeats at the same times give the same quorums as torchft's own lighthouse
(``quorum_compute`` in its ``lighthouse.rs``, which ``tests/lighthouse`` compares it with).
"""

from collections.abc import Iterable
from dataclasses import replace

from torchloom_core.lighthouse.last_incarnation import LastIncarnation
from torchloom_core.lighthouse.membership import Kept, Member, Quorum, Rules
from torchloom_core.wire.steering import (
    MAX_REPLICAS,
    Act,
    Evict,
    Expect,
    HoldBack,
    Leave,
    Order,
    name_of_replica,
)

_ASIDE_S = 0.5
"""A heartbeat that was on its way when its group was set aside says nothing."""

_MOST_ASIDE = 1000
"""Each life of a group that leaves has a replica id of its own, which never comes again."""

_SILENT_S = 0.3
"""How long others wait before it is said who does not ask."""


class Electorate:
    """Everybody a lighthouse knows, and the last quorum.

    Parameters
    ----------
    kept : Kept
        What the last life knew.
    requests : iterable of Member
        What the members of its quorum had asked, where that is known.
    lowest_id : int
        A new quorum has this id at the least: what the last life could not put on file, it
        may have given out all the same.

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

    def __init__(
        self,
        rules: Rules,
        kept: Kept,
        now_s: float,
        *,
        requests: Iterable[Member] = (),
        lowest_id: int = 0,
    ) -> None:
        self._rules = rules
        self.quorum_id = kept.quorum_id
        self.members = None if kept.members is None else frozenset(kept.members)
        self.order: tuple[str, ...] = kept.order
        self._is_reordered = kept.is_reordered
        self._held = frozenset(kept.held)
        self._lowest_id = lowest_id
        self._aside = dict.fromkeys(kept.aside, now_s)
        self._last_incarnation: LastIncarnation | None = None
        self.heartbeats: dict[str, float] = {}
        self.waiting_held: dict[str, float] = {}
        self.asking: dict[str, Member] = {}
        # Who trained when the last life ended has one timeout to say that it still does.
        for replica_id in sorted((self.members or frozenset()) - self._aside.keys()):
            self._heard(replica_id, now_s)
        if self.members:
            self._last_incarnation = LastIncarnation(self.members, requests)
        self._lost: set[str] = set()
        self._expected: frozenset[str] = frozenset()
        self._expected_until_s = now_s
        self._listens_until_s = now_s

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
        if self._last_incarnation is not None:
            self._last_incarnation.heard(replica_id, now_s)

    def overlook(self, seconds: float) -> None:
        """Count for nobody's silence a time in which we did not listen."""
        for table in (self.heartbeats, self.waiting_held):
            for replica_id in table:
                table[replica_id] += seconds

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
                self._is_reordered |= names != self.order
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

    def listen(self, until_s: float) -> None:
        """Form no quorum before then: who trains says so within a moment."""
        self._listens_until_s = until_s

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
            return self._formed_before(now_s)
        ids = frozenset(member.replica_id for member in members)
        failed = any(member.commit_failures > 0 for member in members)
        if ids != self.members or failed or self._is_reordered:
            self.quorum_id = max(self.quorum_id + 1, self._lowest_id)
        self.members = ids
        self._last_incarnation = None
        self._is_reordered = False
        self._lost.clear()
        self.asking.clear()
        return Quorum(self.quorum_id, members, ids)

    def _formed_before(self, now_s: float) -> Quorum | None:
        """Return the last life's quorum where some of its members were not answered."""
        if self._last_incarnation is None or self.members is None:
            return None
        members = self._last_incarnation.formed_of(self.asking, self.waiting_s(now_s))
        if members is None or not self.members.issubset(self.heartbeats):
            return None
        for member in members:
            self.asking.pop(member.replica_id, None)
        return Quorum(self.quorum_id, members, self.members)

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
            or self._last_incarnation is not None
            or self.waiting_s(now_s) >= self._rules.join_timeout_s
        )

    def _chosen(self, now_s: float) -> tuple[tuple[Member, ...] | None, str]:
        """Return torchft's ``quorum_compute``: the members or None, and why."""
        self._forget(now_s)
        rules, healthy, last = self._rules, self.heartbeats, self.members
        present = [m for m in self.asking.values() if m.replica_id in healthy]
        chosen = sorted(present, key=lambda member: member.replica_id)
        count = f"{len(present)} of {len(healthy)} healthy replica groups ask"
        if now_s < self._listens_until_s:
            return None, f"{count}; listening for others that live"
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
        if self._last_incarnation is not None:
            for replica_id in self._last_incarnation.late(now_s):
                self.heartbeats.pop(replica_id, None)

    # --- what it looks like ---

    def kept(self) -> Kept:
        """Return what the next life must know."""
        return Kept(
            quorum_id=self.quorum_id,
            members=None if self.members is None else tuple(sorted(self.members)),
            aside=self.aside,
            held=tuple(sorted(self._held)),
            order=self.order,
            is_reordered=self._is_reordered,
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """Who was evicted or has left, and has not asked again."""
        return tuple(sorted(self._aside))

    @property
    def is_empty(self) -> bool:
        """Whether no group is known to live."""
        return not (self.heartbeats or self.waiting_held or self.asking)

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
