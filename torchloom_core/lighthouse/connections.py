"""Which connections to this process are still there, by their far ends as gRPC names them."""

import ipaddress
import re
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from urllib.parse import unquote

import psutil

_LOOK_EVERY_S = 0.05
"""To look takes a moment, and whoever says another's name may say it often."""

_PEER = re.compile(r"ipv[46]:\[?(?P<host>[^\]]+?)\]?:(?P<port>\d+)")


FarEnd = tuple[str, int]


def far_ends() -> frozenset[FarEnd] | None:
    """Return host and port at the far end of every connection of this process.

    None where that cannot be known now: to look takes a file descriptor, too.
    """
    try:
        connections = psutil.Process().net_connections("tcp")
    except (OSError, psutil.Error):
        return None
    return frozenset(
        (_plain(connection.raddr.ip), connection.raddr.port)
        for connection in connections
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED
    )


class Homes:
    """From which connection each group says that it lives.

    Anybody who reaches the port can say a group's name. What comes over another connection than
    the group's own, while that one is there, neither keeps it alive nor ends it.
    """

    def __init__(self) -> None:
        self._of: dict[str, FarEnd | None] = {}
        self._asked: dict[str, FarEnd | None] = {}
        self._others: dict[str, list[str]] = {}
        self._there: frozenset[FarEnd] | None = None
        self._looked_s = -_LOOK_EVERY_S

    def is_own(self, replica_id: str, peer: str) -> bool:
        """Return whether the group calls from there; whoever calls first does."""
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
        """Know a connection that says a group's name, beside the group's own, while it does."""
        others = self._others.setdefault(replica_id, [])
        others.append(peer)
        try:
            yield
        finally:
            others.remove(peer)
            if not others:
                self._others.pop(replica_id, None)

    def move(self, replica_id: str) -> bool:
        """Take another connection for the group's own, now that its own has ended, if there is one.

        A Manager that connects anew may be heard there before the old connection ends.
        """
        others = self._others.get(replica_id)
        if not others:
            return False
        self._of[replica_id] = far_end(others[-1])
        return True

    def asks(self, replica_id: str, peer: str) -> None:
        """Know from where a group asks for a quorum: a Manager that retries connects anew."""
        self._asked[replica_id] = far_end(peer)

    def is_gone(self, replica_id: str, there: frozenset[FarEnd]) -> bool:
        """Return whether a group's connections have all ended, for all that is known."""
        known = {self._of.get(replica_id), self._asked.get(replica_id, self._of.get(replica_id))}
        return None not in known and known.isdisjoint(there)

    def forget(self, replica_id: str) -> None:
        """Forget a group that has ended."""
        self._of.pop(replica_id, None)
        self._asked.pop(replica_id, None)

    def forget_all_but(self, present: Set[str]) -> None:
        """Forget whoever has only ever asked and is not there any more."""
        for replica_id in self._asked.keys() - self._of.keys() - present:
            del self._asked[replica_id]


def far_end(peer: str) -> FarEnd | None:
    """Return host and port in gRPC's name for a peer, or None where it has none.

    Examples
    --------
    >>> far_end("ipv6:%5B::1%5D:4000"), far_end("ipv4:10.0.0.1:4000"), far_end("unix:")
    (('::1', 4000), ('10.0.0.1', 4000), None)
    """
    match = _PEER.fullmatch(unquote(peer))
    return (_plain(match["host"]), int(match["port"])) if match else None


def _plain(host: str) -> str:
    """Return an IPv4 address as such, though a socket of both families has it as IPv6."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
