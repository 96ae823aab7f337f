"""Which connections to this process are still there, by their far ends as gRPC names them."""

import ipaddress
import re
from urllib.parse import unquote

import psutil

_PEER = re.compile(r"ipv[46]:\[?(?P<host>[^\]]+?)\]?:(?P<port>\d+)")


def far_ends() -> frozenset[tuple[str, int]]:
    """Return host and port at the far end of every connection of this process."""
    return frozenset(
        (_plain(connection.raddr.ip), connection.raddr.port)
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED
    )


def far_end(peer: str) -> tuple[str, int] | None:
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
