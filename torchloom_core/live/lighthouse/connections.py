"""The open connections of this process, by their remote addresses as gRPC names them."""

import ipaddress
import re
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from urllib.parse import unquote

import psutil

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
