"""The sockets that a process group opened to the peers of its quorum, and how to shut them down.

gloo cannot end a collective: a peer that freezes blocks all others until the process group's
timeout. ``shutdown(2)`` on its sockets ends it. The kernel knows these sockets: gloo watches
them, and its listener, with an epoll of its own. Linux only.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DESCRIPTORS = Path("/proc/self/fd")
_POLL_S = 0.02
_TCP_BYTES = struct.Struct("QQ")
_TCP_BYTES_AT = 120
"""Of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` in linux/tcp.h."""


class Connections:
    """The connections of the present quorum of one process group.

    ``quiet_s``: before an error is passed on, own collectives in flight are waited for as long as a
    byte moves within this many seconds: two groups may wait for each other.
    """

    def __init__(self, pg: Any, quiet_s: float = 0.5) -> None:
        self._pg = pg
        self._quiet_s = quiet_s
        self._is_gloo = pg.getBackendName() == "torchft-gloo"
        self._quorum_id = -1
        self._inodes: frozenset[int] = frozenset()
        self._is_complete = False
        self._works: list[Any] = []
        self._in_step = True
        self._shut_at = -1
        self._reconfigure, self._allreduce = pg.reconfigure, pg.allreduce
        pg.reconfigure, pg.allreduce = self._reconfigured, self._issued

    def refusal(self, quorum_id: int) -> str:
        """Return why the connections of this quorum cannot be cut; "" if they can.

        An earlier quorum's connections are gone: nothing waits in them any more.
        """
        if quorum_id > self._quorum_id:
            return f"need the present quorum, {self._quorum_id}, was {quorum_id}"
        if self._is_gloo and not _DESCRIPTORS.exists():
            return "connections can be cut on Linux only"
        if self._is_gloo and self._quorum_id == quorum_id and not self._is_complete:
            return f"the connections of quorum {quorum_id} are unknown in this process"
        return ""

    def cut(self, quorum_id: int) -> str:
        """Shut down the connections of this quorum, and return how many were open.

        They are identified by their inodes, so that no connection of a later quorum is hit, even if
        this quorum ends meanwhile.
        """
        inodes, present = self._inodes, self._quorum_id
        if quorum_id != present:
            return f"quorum {quorum_id} is over already, the present one is {present}"
        if not self._is_gloo:
            self._pg.abort()
            return "the process group is aborted"
        return f"{_shut(inodes, socket.SHUT_RDWR)} connections of quorum {quorum_id} are shut down"

    def pass_error_on(self) -> None:
        """Pass an error on to waiting peers: this process takes no further part in this quorum.

        Only the sending half is shut down, and after all that is still sent: a peer that needs no
        more than that gets it, and commits its step as usual.
        """
        if not (self._is_gloo and self._in_step) or self._shut_at == self._quorum_id:
            return
        self._shut_at = self._quorum_id
        if self._in_flight():
            name = "torchloom-error"
            threading.Thread(target=self._shut_when_quiet, name=name, daemon=True).start()
        else:
            _shut(self._inodes, socket.SHUT_WR)

    def begin_step(self) -> None:
        """Take errors from now on as those of this step."""
        self._in_step = True

    def end_step(self) -> None:
        """Take no more errors for this step, and release its collectives' tensors.

        The Manager discards errors that are reported between two steps.
        """
        self._in_step = False
        self._works = []

    def _reconfigured(self, opts: Any) -> Any:
        self._inodes, self._is_complete, self._works = frozenset(), False, []
        self._quorum_id = int(opts.uuid)
        before = frozenset(inode for inode, _ in _sockets())
        configured = self._reconfigure(opts)
        peers = len(opts.handles) - 1
        with contextlib.suppress(OSError):
            self._inodes = _gloo_connections(before, peers)
            self._is_complete = bool(self._inodes) or not peers
        return configured

    def _issued(self, *args: Any, **kwargs: Any) -> Any:
        work = self._allreduce(*args, **kwargs)
        self._works = [*filter(_is_in_flight, self._works), work]
        return work

    def _in_flight(self) -> bool:
        return any(map(_is_in_flight, self._works))

    def _shut_when_quiet(self) -> None:
        """Wait until the own other collectives end or stall, then shut the sending halves."""
        inodes = self._inodes
        moved, since = _bytes_moved(inodes), time.monotonic()
        while self._in_flight() and inodes == self._inodes:
            if time.monotonic() - since > self._quiet_s:
                break
            time.sleep(_POLL_S)
            if (now := _bytes_moved(inodes)) != moved:
                moved, since = now, time.monotonic()
        _shut(inodes, socket.SHUT_WR)


def _is_in_flight(work: Any) -> bool:
    return not work.is_completed()


def _links() -> Iterator[tuple[int, str]]:
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(_DESCRIPTORS):
            with contextlib.suppress(OSError):
                yield int(name), os.readlink(_DESCRIPTORS / name)


def _sockets() -> Iterator[tuple[int, int]]:
    """Yield the inode and descriptor of each socket of this process."""
    for descriptor, link in _links():
        if link.startswith("socket:["):
            yield int(link[len("socket:[") : -1]), descriptor


def _opened(inodes: frozenset[int]) -> Iterator[socket.socket]:
    """Yield those sockets that are still open, each valid for one iteration.

    A descriptor may be closed and reused at any moment: it is duplicated first, then checked.
    A stored duplicate would keep the connection open when this process closes it.
    """
    for inode, descriptor in list(_sockets()) if inodes else ():
        if inode not in inodes:
            continue
        with contextlib.suppress(OSError):
            copy = os.dup(descriptor)
            if os.fstat(copy).st_ino != inode:
                os.close(copy)
                continue
            with socket.socket(fileno=copy) as opened:
                yield opened


def _shut(inodes: frozenset[int], half: int) -> int:
    count = 0
    for opened in _opened(inodes):
        with contextlib.suppress(OSError):  # shut down already
            opened.shutdown(half)
            count += 1
    return count


def _bytes_moved(inodes: frozenset[int]) -> int:
    total = 0
    for opened in _opened(inodes):
        info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        total += sum(_TCP_BYTES.unpack_from(info, _TCP_BYTES_AT))
    return total


def _gloo_connections(before: frozenset[int], peers: int) -> frozenset[int]:
    """Return the inodes of the connections that gloo has opened since ``before``.

    Other threads may have opened sockets meanwhile, and the rendezvous store has. gloo's are
    those that one epoll watches together with a listener, all of them new; unlike the epolls of
    asyncio, libuv and tokio, gloo's is not closed on exec.
    """
    found: set[int] = set()
    for watched in _epolls():
        new = frozenset(watched - before)
        listening = {_inode(opened) for opened in _opened(new) if _listens(opened)}
        connected = {_inode(opened) for opened in _opened(new - listening) if _is_tcp(opened)}
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
