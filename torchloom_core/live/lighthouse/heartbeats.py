"""Delay the answers to heartbeats, to detect at once that their sender has ended.

A Manager sends its next heartbeat 100 ms after the answer to the last one. The answer is delayed
and the call watched: if it is cut off, the process has ended or its Manager was shut down, and the
group is removed at once. Between two heartbeats the connection is checked instead.
"""

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

import psutil

from torchloom_core.live.lighthouse.quorum import Electorate

_OVERDUE_S = 0.15
"""A Manager sends its next heartbeat 0.1 s after the answer to the last one."""

_LATE_S = 1.0
"""A heartbeat this long after the answer to the last one is counted as late."""

_SILENT_S = 1.0
_SILENT_TIMES = 5
"""A gap above this time, and above this multiple of the longest gap before, means that the group
shut its Manager down, which does not close the connection."""

_LOOK_EVERY_S = 0.05
"""Listing connections takes time, and a client with another group's name may call often."""

_PEER = re.compile(r"ipv[46]:\[?(?P<host>[^\]]+?)\]?:(?P<port>\d+)")


FarEnd = tuple[str, int]


def far_ends() -> frozenset[FarEnd] | None:
    """Return remote host and port of every connection of this process; None if that is unknown."""
    try:
        connections = psutil.Process().net_connections("tcp")
    except (OSError, psutil.Error):
        return None
    return frozenset(
        (_plain(connection.raddr.ip), connection.raddr.port)
        for connection in connections
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED
    )


class GroupConnections:
    """The connection from which each group sends its heartbeats.

    Any client that reaches the port can send a group's name. While the group's own connection is
    open, a heartbeat over another one neither keeps the group alive nor ends it.
    """

    def __init__(self) -> None:
        self._of: dict[str, FarEnd | None] = {}
        self._requested: dict[str, FarEnd | None] = {}
        self._others: dict[str, list[str]] = {}
        self._there: frozenset[FarEnd] | None = None
        self._looked_s = -_LOOK_EVERY_S

    def is_own(self, replica_id: str, peer: str) -> bool:
        """Return whether this is the group's own connection: the first that sent its name."""
        end = far_end(peer)
        home = self._of.setdefault(replica_id, end)
        if home == end or end is None:
            return True
        now_s = time.monotonic()
        if now_s >= self._looked_s + _LOOK_EVERY_S:
            self._there, self._looked_s = far_ends(), now_s
        if self._there is not None and home in self._there:
            return False
        self._of[replica_id] = end
        return True

    @contextmanager
    def another(self, replica_id: str, peer: str) -> Iterator[None]:
        """Remember another connection with a group's name for as long as the context lasts."""
        others = self._others.setdefault(replica_id, [])
        others.append(peer)
        try:
            yield
        finally:
            others.remove(peer)
            if not others:
                self._others.pop(replica_id, None)

    def move(self, replica_id: str) -> bool:
        """Make another connection the group's own, if it had reconnected before its own ended."""
        others = self._others.get(replica_id)
        if not others:
            return False
        self._of[replica_id] = far_end(others[-1])
        return True

    def note_request(self, replica_id: str, peer: str) -> None:
        """Remember the connection of a quorum request: a Manager that retries reconnects."""
        self._requested[replica_id] = far_end(peer)

    def is_gone(self, replica_id: str, there: frozenset[FarEnd]) -> bool:
        """Return whether all known connections of a group have ended."""
        own = self._of.get(replica_id)
        ends = {own, self._requested.get(replica_id, own)}
        return None not in ends and ends.isdisjoint(there)

    def forget(self, replica_id: str) -> None:
        """Forget a group that has ended."""
        self._of.pop(replica_id, None)
        self._requested.pop(replica_id, None)

    def forget_all_but(self, present: Set[str]) -> None:
        """Forget groups that sent requests but no heartbeats, and are not present."""
        for replica_id in self._requested.keys() - self._of.keys() - present:
            del self._requested[replica_id]


def far_end(peer: str) -> FarEnd | None:
    """Return host and port in gRPC's name for a peer, or None without them.

    Examples
    --------
    >>> far_end("ipv6:%5B::1%5D:4000"), far_end("ipv4:10.0.0.1:4000"), far_end("unix:")
    (('::1', 4000), ('10.0.0.1', 4000), None)
    """
    match = _PEER.fullmatch(unquote(peer))
    return (_plain(match["host"]), int(match["port"])) if match else None


def _plain(host: str) -> str:
    """Return an IPv4 address as IPv4, also if a dual-stack socket has it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class Heartbeats:
    """The heartbeat calls of all groups; with a ``hold_s`` of 0 the end of one is not detected."""

    def __init__(
        self,
        electorate: Electorate,
        hold_s: float,
        now_s: Callable[[], float],
        ended: Callable[[str], None],
    ) -> None:
        self._electorate = electorate
        self._hold_s = hold_s
        self._now_s = now_s
        self._ended = ended
        self._newest_calls: dict[str, object] = {}
        self._held_back: set[asyncio.Future[None]] = set()
        self._gaps: dict[str, HeartbeatGaps] = {}
        self.connections = GroupConnections()

    async def take(self, replica_id: str, peer: str) -> None:
        """Note that a group is alive, and return late, to detect if it ends meanwhile."""
        if not self._hold_s:
            self._electorate.beat(replica_id, self._now_s())
        elif self.connections.is_own(replica_id, peer):
            await self._take_own(replica_id)
        else:
            await self._take_another(replica_id, peer)

    async def _take_own(self, replica_id: str) -> None:
        self._electorate.beat(replica_id, self._now_s())
        gaps = self._gaps.setdefault(replica_id, HeartbeatGaps())
        gaps.end()
        call = self._newest_calls[replica_id] = object()
        try:
            await self._hold_back()
        except asyncio.CancelledError:
            is_newest = self._newest_calls.get(replica_id) is call
            if is_newest and not self.connections.move(replica_id):  # it has not reconnected
                self._end(replica_id)
            raise
        finally:
            if self._newest_calls.get(replica_id) is call:
                del self._newest_calls[replica_id]
        if replica_id not in self._newest_calls:
            gaps.begin()

    async def _take_another(self, replica_id: str, peer: str) -> None:
        """Take a heartbeat over a connection that is not the group's own, but may become it."""
        try:
            with self.connections.another(replica_id, peer):
                await self._hold_back()
        except asyncio.CancelledError:
            if self.connections.is_own(replica_id, peer):
                self._end(replica_id)
            raise
        speaks = replica_id in self._newest_calls or replica_id not in self._gaps
        if not speaks and self.connections.is_own(replica_id, peer):  # by now
            self._gaps[replica_id].begin()

    def is_late(self, replica_id: str) -> bool:
        """Return whether a heartbeat that arrives now comes `_LATE_S` after the last answer."""
        gaps = self._gaps.get(replica_id)
        return gaps is not None and gaps.is_due(self._now_s() - _LATE_S + _OVERDUE_S)

    def exclude(self, asleep_s: float, now_s: float) -> None:
        """Exclude a time in which the lighthouse did not run from all gaps."""
        for gaps in self._gaps.values():
            gaps.exclude(asleep_s, now_s)

    def look_for_ends(self) -> None:
        """Find the groups whose heartbeat is overdue and whose connection is closed."""
        now_s = self._now_s()
        due = [(r, gaps) for r, gaps in self._gaps.items() if gaps.is_due(now_s)]
        there = far_ends() if due else None
        for replica_id, gaps in due:
            is_gone = there is not None and self.connections.is_gone(replica_id, there)
            if is_gone and self.connections.move(replica_id):  # it uses another one by now
                gaps.end()
                self._electorate.beat(replica_id, now_s)
            elif is_gone or gaps.is_over(now_s):
                self._end(replica_id)
            elif replica_id not in self._electorate.heartbeats:
                self._forget(replica_id)
        self.connections.forget_all_but(self._electorate.heartbeats.keys())

    def close(self) -> None:
        """Answer all delayed heartbeats, so that our shutdown does not look like their end."""
        for wake in self._held_back:
            _wake(wake)

    async def _hold_back(self) -> None:
        loop = asyncio.get_running_loop()
        wake = loop.create_future()
        timer = loop.call_later(self._hold_s, _wake, wake)
        self._held_back.add(wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._held_back.discard(wake)

    def _end(self, replica_id: str) -> None:
        self._forget(replica_id)
        self._ended(replica_id)

    def _forget(self, replica_id: str) -> None:
        self._gaps.pop(replica_id, None)
        self.connections.forget(replica_id)


def _wake(waits: asyncio.Future[None]) -> None:
    if not waits.done():
        waits.set_result(None)


@dataclass(slots=True)
class HeartbeatGaps:
    """The times from an answer to the next heartbeat: the present one's start, and the longest."""

    since_s: float | None = None
    longest_s: float | None = None

    def begin(self) -> None:
        """Start a gap."""
        self.since_s = time.monotonic()

    def end(self) -> None:
        """End the gap: the next heartbeat has arrived."""
        if self.since_s is not None:
            self.longest_s = max(self.longest_s or 0.0, time.monotonic() - self.since_s)
            self.since_s = None

    def exclude(self, asleep_s: float, now_s: float) -> None:
        """Exclude a time in which the lighthouse did not run from the present gap."""
        if self.since_s is not None:
            self.since_s = min(now_s, self.since_s + asleep_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether the next heartbeat is overdue."""
        return self.since_s is not None and now_s - self.since_s > _OVERDUE_S

    def is_over(self, now_s: float) -> bool:
        """Return whether the gap is so long that no heartbeat is to be expected."""
        if self.since_s is None or self.longest_s is None:
            return False
        return now_s - self.since_s > max(_SILENT_S, _SILENT_TIMES * self.longest_s)
