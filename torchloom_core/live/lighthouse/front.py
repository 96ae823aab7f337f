"""One port for torchft's Managers and for HTTP, as with torchft's own lighthouse.

gRPC for Python accepts HTTP/2 only. So this module listens on the port, and passes connections
that begin as HTTP/2 to the gRPC server, and others to the web server, both on loopback.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.web_server import listener

_PREFACE = b"PRI * HTTP/2.0\r\n"
"""The first bytes of an HTTP/2 client; no HTTP/1 request begins with them."""

_DECIDE_S = 10.0
"""Time within which a client has to send its first bytes."""

_MOST_UNDECIDED = 512
_BACKLOG = 1024
_AT_ONCE = 1 << 16
_REST_S = 1.0
_LOOPBACK = "127.0.0.1"
_ANY = {"::": "0.0.0.0"}

_log = logging.getLogger(__name__)


def listeners(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on every address of the host, on one port; or raise OSError."""
    found: list[socket.socket] = []
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for place in dict.fromkeys(str(info[4][0]) for info in infos):
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


class Front:
    """Passes connections on to the two servers' ports on loopback, and knows the client of each."""

    def __init__(self, grpc_port: int, http_port: int, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._grpc_port = grpc_port
        self._http_port = http_port
        self._callers: dict[str, str] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._undecided: dict[str, asyncio.Task[None]] = {}

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
            await end_all(*taking)
            await end_all(*self._open)

    async def _take(self, found: socket.socket) -> None:
        """Accept connections until cancelled; wait while there is no free file descriptor."""
        found.setblocking(False)
        found.listen(_BACKLOG)
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(found)
            except ConnectionError:
                continue  # gone already
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_REST_S)
                continue
            host, port = address[:2]
            client = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
            task = self._undecided[client] = asyncio.create_task(self._forward(connection, client))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            if len(self._undecided) > _MOST_UNDECIDED:
                self._undecided.pop(next(iter(self._undecided))).cancel()

    async def _forward(self, connection: socket.socket, client: str) -> None:
        """Forward a connection to the server for the protocol with which it begins."""
        try:
            reader, writer = await self._opened(connection)
        except OSError:  # no TLS, or it ended meanwhile
            self._undecided.pop(client, None)
            return
        try:
            try:
                async with asyncio.timeout(_DECIDE_S):
                    begin = await _begin(reader)
            finally:
                self._undecided.pop(client, None)
            if not _PREFACE.startswith(begin) or begin == _PREFACE:
                await self._pass_on(client, begin, reader, writer)
        except OSError:
            writer.transport.abort()  # it is cut off, or sends nothing
        finally:
            writer.close()

    async def _opened(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams of an accepted connection, after its handshake if it has one."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        limit = {"ssl_handshake_timeout": _DECIDE_S} if self._tls else {}
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=self._tls, **limit
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _pass_on(
        self, client: str, begin: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = self._grpc_port if begin == _PREFACE else self._http_port
        try:
            inner_reader, inner_writer = await asyncio.open_connection(_LOOPBACK, port)
        except OSError as error:
            _log.warning("cannot forward a connection of %s: %s", client, error)
            return
        peer = f"ipv4:{_LOOPBACK}:{inner_writer.get_extra_info('sockname')[1]}"
        self._callers[peer] = client
        inner_writer.write(begin)
        try:
            await copy_both_ways((reader, writer), (inner_reader, inner_writer))
        finally:
            del self._callers[peer]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def copy_both_ways(outer: Streams, inner: Streams) -> None:
    """Forward between two connections until both ways have ended, or one is cut off."""
    try:
        async with asyncio.TaskGroup() as ways:
            ways.create_task(_copy(outer[0], inner[1]))
            ways.create_task(_copy(inner[0], outer[1]))
    except* OSError:
        outer[1].transport.abort()
        inner[1].transport.abort()
    finally:
        inner[1].close()


async def _begin(reader: asyncio.StreamReader) -> bytes:
    """Return the first bytes of a connection, as many as tell its protocol."""
    begin = b""
    while len(begin) < len(_PREFACE) and _PREFACE.startswith(begin):
        part = await reader.read(len(_PREFACE) - len(begin))
        if not part:
            break
        begin += part
    return begin


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write what is read, also the end, after which the other way stays open.

    TLS knows no half of a connection: there the end is that of both ways.
    """
    while data := await reader.read(_AT_ONCE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()
