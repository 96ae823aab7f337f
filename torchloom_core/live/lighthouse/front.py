"""One port for torchft's Managers and for HTTP, as with torchft's own lighthouse.

gRPC for Python accepts HTTP/2 only. So this module listens on the port, and passes connections
that begin as HTTP/2 to the gRPC server, and others to the web server, both on loopback.
"""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import cast

from torchloom_core.floor.web_server import listener

_PREFACE = b"PRI * HTTP/2.0\r\n"
"""The first bytes of an HTTP/2 client; no HTTP/1 request begins with them."""

_DECIDE_S = 10.0
"""Time within which a client has to send its first bytes."""

_MOST_UNDECIDED = 512
_BACKLOG = 1024
_REST_S = 1.0
_LOOPBACK = "127.0.0.1"
_ANY = {"::": "0.0.0.0"}

_log = logging.getLogger(__name__)


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of the host, on one port; or raise OSError."""
    found: list[socket.socket] = []
    try:
        addresses = _addresses(host)
        for place in addresses:
            try:
                found.append(listener(place, port))
            except OSError:
                if place not in _ANY or socket.has_dualstack_ipv6():
                    raise
                found.append(listener(_ANY[place], port))
            port = port or int(found[0].getsockname()[1])
    except OSError:
        for one in found:
            one.close()
        raise
    return found


def _addresses(host: str) -> list[str]:
    infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class Front:
    """Passes connections on to the two servers' ports on loopback, and knows the client of each."""

    def __init__(self, grpc_port: int, http_port: int) -> None:
        self._grpc_port = grpc_port
        self._http_port = http_port
        self._callers: dict[str, str] = {}
        self._undecided: dict[_Outer, None] = {}
        self._open: set[_Outer] = set()

    def caller(self, peer: str) -> str:
        """Return the client of the connection that gRPC names ``peer``, in gRPC's notation."""
        return self._callers.get(peer, peer)

    @asynccontextmanager
    async def serving(self, found: Iterable[socket.socket]) -> AsyncIterator[None]:
        """Accept connections at these listeners for as long as the context lasts."""
        taking = [asyncio.create_task(self._take(one)) for one in found]
        try:
            yield
        finally:
            for task in taking:
                task.cancel()
            await asyncio.gather(*taking, return_exceptions=True)
            for outer in tuple(self._open):
                outer.end()

    async def _take(self, found: socket.socket) -> None:
        """Accept connections until cancelled; wait while there is no free file descriptor."""
        found.setblocking(False)
        found.listen(_BACKLOG)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(found)
                await loop.connect_accepted_socket(lambda: _Outer(self), connection)
            except ConnectionError:
                continue  # gone already
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_REST_S)

    def add(self, outer: "_Outer") -> None:
        """Add a connection; close the oldest if too many have sent nothing."""
        self._open.add(outer)
        self._undecided[outer] = None
        if len(self._undecided) > _MOST_UNDECIDED:
            next(iter(self._undecided)).end()

    def decided(self, outer: "_Outer") -> None:
        """Note that a connection's protocol is known, or that it has ended."""
        self._undecided.pop(outer, None)

    async def connect(self, outer: "_Outer", *, is_grpc: bool) -> "_Inner":
        """Connect to the server for a connection's protocol."""
        port = self._grpc_port if is_grpc else self._http_port
        loop = asyncio.get_running_loop()
        transport, inner = await loop.create_connection(lambda: _Inner(outer), _LOOPBACK, port)
        inner.name = f"ipv4:{_LOOPBACK}:{transport.get_extra_info('sockname')[1]}"
        self._callers[inner.name] = outer.caller
        return inner

    def over(self, outer: "_Outer", inner: "_Inner | None") -> None:
        """Forget a connection."""
        self.decided(outer)
        self._open.discard(outer)
        if inner is not None:
            self._callers.pop(inner.name, None)


class _Half(asyncio.Protocol):
    """One side of a forwarded connection; each side writes what the other reads."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Half | None = None
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Forward the end, and keep writing until the other side has ended as well."""
        self.has_ended = True
        if self.other is None or self.other.transport is None or self.other.has_ended:
            return False
        with suppress(OSError):
            self.other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            if exc is None:
                self.other.transport.close()  # after pending writes
            else:
                self.other.transport.abort()


class _Inner(_Half):
    """The server's side."""

    def __init__(self, outer: "_Outer") -> None:
        super().__init__()
        self.other = outer
        self.name = ""


class _Outer(_Half):
    """The client's side, whose first bytes decide on the protocol."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self.caller = ""
        self._front = front
        self._received = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        address = transport.get_extra_info("peername")
        if address is None:  # gone already
            transport.close()
            return
        host, port = address[:2]
        self.caller = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._deadline = asyncio.get_running_loop().call_later(_DECIDE_S, self.end)
        self._front.add(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._received += data
        is_grpc = self._received[: len(_PREFACE)] == _PREFACE[: len(self._received)]
        if self._connecting is None and (len(self._received) >= len(_PREFACE) or not is_grpc):
            self._decide(is_grpc=is_grpc)

    def _decide(self, *, is_grpc: bool) -> None:
        self._front.decided(self)
        if self._deadline is not None:
            self._deadline.cancel()
        if self.transport is not None:
            self.transport.pause_reading()
        self._connecting = asyncio.create_task(self._pass_on(is_grpc=is_grpc))

    async def _pass_on(self, *, is_grpc: bool) -> None:
        try:
            inner = await self._front.connect(self, is_grpc=is_grpc)
        except OSError as error:
            _log.warning("cannot forward a connection of %s: %s", self.caller, error)
            self.end()
            return
        if self.transport is None or self.transport.is_closing():
            self._front.over(self, inner)
            if inner.transport is not None:
                inner.transport.abort()
            return
        self.other = inner
        super().data_received(self._received)
        self._received = b""
        self.transport.resume_reading()

    def end(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        inner = self.other if isinstance(self.other, _Inner) else None
        self._front.over(self, inner)
        super().connection_lost(exc)
