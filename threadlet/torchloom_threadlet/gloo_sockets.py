"""The sockets that gloo opened to the peers of a group, and how to shut them down.

gloo cannot end a collective: a peer that freezes blocks all others until the process group's
timeout. ``shutdown(2)`` on its sockets ends it. The kernel knows these sockets: gloo watches
them, and its listener, with an epoll of its own. Linux only.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")
_TCP_BYTES = struct.Struct("QQ")
_TCP_BYTES_AT = 120
"""Of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in linux/tcp.h."""


def _links() -> Iterator[tuple[int, str]]:
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(DESCRIPTORS):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(DESCRIPTORS / name)


def sockets() -> Iterator[tuple[int, int]]:
    """Yield the inode and descriptor of each socket of this process."""
    for descriptor, link in _links():
        if link.startswith("socket:["):
            yield int(link[len("socket:[") : -1]), descriptor


def open_sockets(inodes: frozenset[int]) -> Iterator[socket.socket]:
    """Yield those sockets that are still open, each valid for one iteration.

    A descriptor may be closed and reused at any moment: it is duplicated first, then checked.
    A stored duplicate would keep the connection open when this process closes it.
    """
    for inode, descriptor in list(sockets()) if inodes else ():
        if inode not in inodes:
            continue
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)
            if os.fstat(copy).st_ino != inode:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as opened:
                yield opened


def shut(inodes: frozenset[int], half: int) -> int:
    """Shut down these sockets, and return how many were open."""
    count = 0
    for opened in open_sockets(inodes):
        with contextlib.suppress(OSError):  # shut down already
            opened.shutdown(half)
            count += 1
    return count


def bytes_moved(inodes: frozenset[int]) -> int:
    """Return the bytes that these connections have sent and received so far."""
    total = 0
    for opened in open_sockets(inodes):
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        total += sum(_TCP_BYTES.unpack_from(info, _TCP_BYTES_AT))
    return total


def gloo_connections(before: frozenset[int], peers: int) -> frozenset[int]:
    """Return the inodes of the connections that gloo has opened since ``before``.

    Other threads may have opened sockets meanwhile, and the rendezvous store has. gloo's are
    those that one epoll watches together with a listener, all of them new; unlike the epolls of
    asyncio, libuv and tokio, gloo's is not closed on exec.
    """
    found: set[int] = set()
    for watched in _epolls():
        new = frozenset(watched - before)
        listening = {_inode(opened) for opened in open_sockets(new) if _listens(opened)}
        connected = {_inode(opened) for opened in open_sockets(new - listening) if _is_tcp(opened)}
        if listening and len(connected) <= peers:
            found |= connected
    return frozenset(found)


def _epolls() -> Iterator[set[int]]:
    """Yield the inodes that each epoll without close-on-exec watches."""
    for descriptor, link in _links():
        if link != "anon_inode:[eventpoll]":
            continue
        with contextlib.suppress(OSError, ValueError):
            if os.get_inheritable(descriptor):
                lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
                watched = [line.split() for line in lines if line.startswith("tfd:")]
                yield {
                    int(word.removeprefix("ino:"), 16)
                    for words in watched
                    for word in words
                    if word.startswith("ino:")
                }


def _inode(opened: socket.socket) -> int:
    return os.fstat(opened.fileno()).st_ino


def _is_tcp(opened: socket.socket) -> bool:
    return opened.family in (socket.AF_INET, socket.AF_INET6)


def _listens(opened: socket.socket) -> bool:
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and _is_tcp(opened)
