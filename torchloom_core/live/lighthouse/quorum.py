"""Form quorums: torchft's rules, and the steering that may override them.

Pure: time comes with every call, seconds of a monotonic clock. Without steering, the same requests
and heartbeats at the same times give the same quorums as torchft's own lighthouse
(``quorum_compute`` in its ``lighthouse.rs``, compared in ``tests/lighthouse``).
"""

from collections.abc import Iterable
from dataclasses import replace

from torchloom_core.live.lighthouse.membership import LastQuorum, Member, Quorum, Rules, SavedState
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
"""A heartbeat within this time after its group was set aside was still in flight, and ignored."""

_MOST_ASIDE = 1000
"""Each incarnation of a group has its own replica id, which is never used again."""

_SILENT_S = 0.3
"""How long groups wait before members without a request are reported as silent."""


class Electorate:
    """The replica groups that a lighthouse knows, and the last quorum.

    A new quorum has at least ``lowest_id``: the previous process may have used ids that it could
    not save. ``members`` are None before the first quorum. ``heartbeats`` has the time of each
    healthy group's last one, the oldest first, ``requests`` the groups that wait, in order. Ranks
    follow ``order``, names of replicas; empty: torchft's order.
    """

    def __init__(
        self,
        rules: Rules,
        saved: SavedState,
        now_s: float,
        *,
        requests: Iterable[Member] = (),
        lowest_id: int = 0,
    ) -> None:
        self._rules = rules
        self.quorum_id = saved.quorum_id
        self.members = None if saved.members is None else frozenset(saved.members)
        self.order: tuple[str, ...] = saved.order
        self._is_reordered = saved.is_reordered
        self._held_names = frozenset(saved.held)
        self._lowest_id = lowest_id
        self._aside = dict.fromkeys(saved.aside, now_s)
        self._last_quorum: LastQuorum | None = None
        self.heartbeats: dict[str, float] = {}
        self.held_back: dict[str, float] = {}
        self.requests: dict[str, Member] = {}
        # Members of the last quorum have one timeout to send a heartbeat.
        for replica_id in sorted((self.members or frozenset()) - self._aside.keys()):
            self._note_alive(replica_id, now_s)
        if self.members:
            self._last_quorum = LastQuorum(self.members, requests)
        self._lost: set[str] = set()
        self._expected: frozenset[str] = frozenset()
        self._expected_until_s = now_s
        self._listens_until_s = now_s

    # --- calls of Managers ---

    def has_room_for(self, replica_id: str, now_s: float) -> bool:
        """Return whether the group is known, or one more may be added."""
        if replica_id in self.heartbeats or replica_id in self.requests:
            return True
        self._forget(now_s)
        return len(self.heartbeats) + len(self.held_back) < MAX_REPLICAS

    def beat(self, replica_id: str, now_s: float) -> None:
        """Note that a group is alive."""
        if replica_id in self._aside:
            waits = replica_id in self.requests
            if not waits or now_s - self._aside[replica_id] < _ASIDE_S:
                return
            del self._aside[replica_id]  # it is alive after all, and waits for a quorum
        self._note_alive(replica_id, now_s)

    def request(self, member: Member, now_s: float) -> None:
        """Note that a group is alive, and requests to be in the next quorum."""
        self._aside.pop(member.replica_id, None)
        self._lost.discard(member.replica_id)
        self._note_alive(member.replica_id, now_s)
        self.request_again(member, now_s)

    def request_again(self, member: Member, now_s: float) -> None:
        """Repeat the request of a group that the last quorum left out."""
        self.requests.pop(member.replica_id, None)
        self.requests[member.replica_id] = replace(member, requested_s=now_s)

    def withdraw(self, replica_id: str) -> None:
        """Remove a request whose caller no longer waits."""
        self.requests.pop(replica_id, None)

    def mark_lost(self, replica_id: str) -> None:
        """Remove a group at once: its process has ended, or it announced that it leaves."""
        self.heartbeats.pop(replica_id, None)
        self.held_back.pop(replica_id, None)
        self.requests.pop(replica_id, None)
        if self.members and replica_id in self.members:
            self._lost.add(replica_id)

    def _note_alive(self, replica_id: str, now_s: float) -> None:
        table = self.held_back if self.is_held_back(replica_id) else self.heartbeats
        table.pop(replica_id, None)
        table[replica_id] = now_s
        if self._last_quorum is not None:
            self._last_quorum.beat(replica_id, now_s)

    def exclude(self, seconds: float) -> None:
        """Exclude a time in which the lighthouse did not run from all heartbeat timeouts."""
        for table in (self.heartbeats, self.held_back):
            for replica_id in table:
                table[replica_id] += seconds

    # --- steering by the Weaver ---

    def is_held_back(self, replica_id: str) -> bool:
        """Return whether a group stays out until it is admitted."""
        return bool(self._held_names) and name_of_replica(replica_id) in self._held_names

    def steer(self, act: Act, now_s: float) -> str:
        """Carry out an act of the Weaver, or return why not."""
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
                self._set_held_names(names)
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
        """Form no quorum before ``until_s`` unless a group of each name requests one."""
        self._expected, self._expected_until_s = frozenset(names), until_s

    def delay_until(self, until_s: float) -> None:
        """Form no quorum before ``until_s``: training groups send heartbeats until then."""
        self._listens_until_s = until_s

    def _set_aside(self, replicas: Iterable[str], now_s: float) -> None:
        for replica_id in replicas:
            waiting = self.requests.get(replica_id)
            self.mark_lost(replica_id)
            self._aside[replica_id] = now_s
            if waiting is not None:
                self.requests[replica_id] = waiting
        while len(self._aside) > _MOST_ASIDE:
            del self._aside[next(iter(self._aside))]

    def _set_held_names(self, names: Iterable[str]) -> None:
        self._held_names = frozenset(names)
        alive = sorted({**self.heartbeats, **self.held_back}.items(), key=lambda item: item[1])
        self.heartbeats, self.held_back = {}, {}
        for replica_id, beat_s in alive:
            self._note_alive(replica_id, beat_s)

    # --- the quorum ---

    def form(self, now_s: float) -> Quorum | None:
        """Form the quorum that is possible now and return it, or None."""
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
        self._last_quorum = None
        self._is_reordered = False
        self._lost.clear()
        self.requests.clear()
        return Quorum(self.quorum_id, members, ids)

    def _formed_before(self, now_s: float) -> Quorum | None:
        """Return the previous process's quorum if some of its members were not answered."""
        if self._last_quorum is None or self.members is None:
            return None
        members = self._last_quorum.unanswered(self.requests, self.waiting_s(now_s))
        if members is None or not self.members.issubset(self.heartbeats):
            return None
        for member in members:
            self.requests.pop(member.replica_id, None)
        return Quorum(self.quorum_id, members, self.members)

    def why(self, now_s: float) -> str:
        """Return in a sentence what the next quorum waits for."""
        return self._chosen(now_s)[1]

    def _may_be_ready(self, now_s: float) -> bool:
        """Check quickly whether a quorum is possible: most requests do not complete a round."""
        if not self.requests:
            return False
        self._forget(now_s)
        waiting_count = len(self.requests)
        return (
            (self.members is not None and waiting_count >= len(self.members))
            or waiting_count >= len(self.heartbeats)
            or self._last_quorum is not None
            or self.waiting_s(now_s) >= self._rules.join_timeout_s
        )

    def _chosen(self, now_s: float) -> tuple[tuple[Member, ...] | None, str]:
        """Return torchft's ``quorum_compute``: the members or None, and why."""
        self._forget(now_s)
        rules, healthy, last = self._rules, self.heartbeats, self.members
        present = [m for m in self.requests.values() if m.replica_id in healthy]
        chosen = sorted(present, key=lambda member: member.replica_id)
        count = f"{len(present)} of {len(healthy)} healthy replica groups request a quorum"
        if now_s < self._listens_until_s:
            return None, f"{count}; waiting for heartbeats of others"
        missing = self._missing(now_s)
        if missing:
            return None, f"{count}; waiting for {', '.join(missing)}"
        if last is not None:
            if any(member.shrink_only for member in present):
                chosen = [member for member in chosen if member.replica_id in last]
            if last.issubset(member.replica_id for member in present):
                return tuple(chosen), f"{count}: all of the last quorum"
        if len(present) < rules.min_replicas:
            return None, f"{count}; need min_replicas = {rules.min_replicas}"
        if len(present) <= len(healthy) // 2:
            return None, f"{count}; need more than half"
        first_s = min((member.requested_s for member in present), default=now_s)
        late = len(healthy) - len(present)
        if late and now_s - first_s < rules.join_timeout_s:
            left_s = rules.join_timeout_s - (now_s - first_s)
            return None, f"{count}; waiting at most {left_s:.1f} s for the other {late}"
        return tuple(chosen), f"{count}: enough"

    def _missing(self, now_s: float) -> list[str]:
        if self.members is not None or now_s >= self._expected_until_s:
            return []
        return sorted(self._expected - {name_of_replica(name) for name in self.requests})

    def _forget(self, now_s: float) -> None:
        """Forget groups without a heartbeat for the timeout."""
        oldest_s = now_s - self._rules.heartbeat_timeout_s
        for table in (self.heartbeats, self.held_back):
            while table:
                replica_id, beat_s = next(iter(table.items()))
                if beat_s > oldest_s:
                    break
                del table[replica_id]
        if self._last_quorum is not None:
            for replica_id in self._last_quorum.late(now_s):
                self.heartbeats.pop(replica_id, None)

    # --- state ---

    def saved_state(self) -> SavedState:
        """Return the state for the next process."""
        return SavedState(
            quorum_id=self.quorum_id,
            members=None if self.members is None else tuple(sorted(self.members)),
            aside=self.aside,
            held=tuple(sorted(self._held_names)),
            order=self.order,
            is_reordered=self._is_reordered,
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """Groups that were evicted or have left, and have not sent a request since."""
        return tuple(sorted(self._aside))

    def is_empty(self, now_s: float) -> bool:
        """Return whether no group is known to be alive."""
        self._forget(now_s)  # without requests nothing else does
        return not (self.heartbeats or self.held_back or self.requests)

    @property
    def held(self) -> tuple[str, ...]:
        """Groups that are alive and held back."""
        return tuple(sorted(self.held_back))

    @property
    def lost(self) -> tuple[str, ...]:
        """Members of the last quorum that were lost since."""
        return tuple(sorted(self._lost))

    def waiting_s(self, now_s: float) -> float:
        """Return how long the first group has been waiting for a quorum, seconds."""
        starts = (m.requested_s for r, m in self.requests.items() if r in self.heartbeats)
        return now_s - next(starts, now_s)

    def failed(self) -> tuple[str, ...]:
        """Return the groups that request a quorum because their last step failed."""
        return tuple(sorted(r for r, m in self.requests.items() if m.commit_failures > 0))

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Return the members without a request although others have been waiting."""
        if self.members is None or self.waiting_s(now_s) < _SILENT_S:
            return ()
        return tuple(sorted(self.members - self.requests.keys() - self._lost))
