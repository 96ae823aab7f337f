"""nats-py's client with workarounds; the Weaver and the sidecars connect with it."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio import client
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.transport import TcpTransport
from nats.protocol import parser

from torchloom_core.floor.server_urls import parse_servers

# A server accepts a vertical tab or a form feed in a subject; nats-py ends the subject there, finds
# no message in the line, and disconnects.
_TO = rb"[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)"
parser.MSG_RE = re.compile(rb"\AMSG" + _TO + rb"\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG" + _TO + rb"[ \t]+(\d+)\r\n")

_MESSAGE = re.compile(rb"MSG ([^ \t\r\n]+) \d+ (?:[^ \t\r\n]+ )?(\d{1,9})\r\n")
"""As the server writes it; anything else is left to nats-py's parser."""

_FLUSH_S = 2.0
_CLOSE_S = 0.5

_LONGEST_MESSAGE_BYTES = 4 << 20
_LONGEST_LINE_BYTES = 1 << 17
"""Four times a server's longest message, and many times its longest INFO."""

_READ_BYTES = 1 << 17
"""What is read at once: nats-py reads 32 KiB, half a dozen batches of telemetry."""

_SHORT_BYTES = 1 << 15
"""The rest of a message of this size is worth waiting for where its beginning is."""

_LONGEST_S = 60
"""By then the client's own pings have detected a dead connection, and it has reconnected."""


class _Parser(parser.Parser):  # type: ignore[misc]
    """nats-py's parser, with a limit for messages that never end."""

    async def parse(self, data: bytes = b"") -> None:
        """Parse data from the server; nats.errors.ProtocolError if malformed, or too long."""
        await super().parse(data)
        longest = len(self.buf)
        if self.state == parser.AWAITING_CONTROL_LINE:
            longest = _LONGEST_LINE_BYTES
        if len(self.buf) > longest or self.needed > _LONGEST_MESSAGE_BYTES:
            raise nats.errors.ProtocolError


class _BulkParser(_Parser):
    """A parser that passes whole messages on at once, instead of one by one by way of a queue."""

    async def parse(self, data: bytes = b"") -> None:
        """Parse data from the server; nats.errors.ProtocolError if malformed, or too long."""
        if self.state == parser.AWAITING_CONTROL_LINE:
            data, is_begun = self._pass_on(bytes(self.buf) + data if self.buf else data)
            self.buf.clear()
            if is_begun:
                self.buf.extend(data)
                return
        await super().parse(data)

    def _pass_on(self, data: bytes) -> tuple[bytes, bool]:
        """Pass on the whole messages at the beginning of ``data``.

        Return the rest, and whether it is the beginning of a short message.
        """
        take, whole = self.nc.take, memoryview(data)
        start = 0
        while line := _MESSAGE.match(data, start):
            subject, size = line.groups()
            begin = line.end()
            end = begin + int(size)
            if end + parser.CRLF_SIZE > len(data):
                # A long message would be copied here at each read.
                return data[start:], end - begin <= _SHORT_BYTES
            take(subject, whole[begin:end])
            start = end + parser.CRLF_SIZE
        return data[start:], False


class _Transport(TcpTransport):  # type: ignore[misc]
    """nats-py's transport, which a server that hangs does not keep from being closed.

    nats-py waits for ever after a TLS handshake that failed, and before it connects to another
    server for the end of TLS, half a minute, or of what is still to be sent.
    """

    read_bytes = 0
    _io_writer: Any
    _io_reader: Any

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        """Connect to the server, with a buffer of ``read_bytes`` at least."""
        await super().connect(uri, max(buffer_size, self.read_bytes), connect_timeout)

    async def read(self, buffer_size: int) -> bytes:
        """Return what has come, at most ``buffer_size`` or ``read_bytes`` bytes."""
        size = max(buffer_size, self.read_bytes)
        return await super().read(size)  # type: ignore[no-any-return]

    async def wait_closed(self) -> None:
        """Wait until the connection is closed; cut it off if that takes too long."""
        writer = self._io_writer
        closing = asyncio.create_task(super().wait_closed())
        closing.add_done_callback(lambda task: task.cancelled() or task.exception())
        if not (await asyncio.wait({closing}, timeout=_CLOSE_S))[0]:
            writer.transport.abort()
        await asyncio.wait({closing})

    async def connect_tls(self, *arguments: Any) -> None:
        """Encrypt the connection; as nats-py's, but a failure ends the connection at once."""
        try:
            await super().connect_tls(*arguments)
        except BaseException:
            self._io_writer.transport.abort()
            self._io_reader = self._io_writer = None
            raise
        protocol = self._io_writer.transport.get_protocol()
        if protocol is not None:  # otherwise it is closed already
            protocol._over_ssl = True  # without it asyncio warns at the end of the connection


client.TcpTransport = _Transport


class NatsClient(Client):  # type: ignore[misc]  # nats-py has no types
    """A client that survives a late PONG, a close during a reconnect, and invalid UTF-8.

    nats-py cancels the future of a flush that times out; a late PONG then ends the task that reads
    from the server, and nothing more is received. Here the flush continues after the timeout.

    nats-py also cancels a reconnect in progress when it is closed. If that waits for the old
    connection to end, a future that both await is cancelled, and so is the caller of ``close``.

    nats-py's reading task ends at a reply subject or a status that is not UTF-8, which any
    publisher can send. Here such a status is dropped, and such a subject gets replacement
    characters.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)
        self._flushes: set[asyncio.Task[None]] = set()

    async def connect(self, servers: str, **options: Any) -> None:
        """Connect to one of the servers in a list of URLs, with the user and password in them.

        Raises ValueError if the URLs have different ones, and nats.errors.Error if no server can be
        reached, or none accepts the client.
        """
        login = parse_servers(servers)
        own = {"user": login.user, "password": login.password, "token": login.token}
        await super().connect(servers=login.urls, **own, **options)

    def _connect_command(self) -> bytes:
        # nats-py encrypts only if the server says so, which anyone on the way could change.
        wants = self._current_server is not None and self._current_server.uri.scheme == "tls"
        writer = self._transport and getattr(self._transport, "_io_writer", None)
        if wants and not (writer and writer.get_extra_info("ssl_object")):
            raise nats.errors.Error("the server offers no TLS, and its URL is tls://")
        return bytes(super()._connect_command())

    async def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until the server has handled all sent messages.

        Raises nats.errors.FlushTimeoutError after ``timeout`` seconds.
        """
        flush = asyncio.create_task(super().flush(_LONGEST_S))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushed)
        await asyncio.wait({flush}, timeout=timeout)
        if not flush.done():
            raise nats.errors.FlushTimeoutError
        flush.result()

    async def close(self) -> None:
        """Close the connection."""
        closing = asyncio.current_task()
        try:
            await super().close()
        except asyncio.CancelledError:
            if closing is None or closing.cancelling():
                raise
        finally:
            for flush in self._flushes:
                flush.cancel()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if not headers:  # checked first, as almost no message has any
            return None
        try:
            return await super()._process_headers(headers)  # type: ignore[no-any-return]
        except (IndexError, UnicodeDecodeError):
            return None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        try:
            return super()._build_message(sid, subject, reply, data, headers)
        except UnicodeDecodeError:
            return super()._build_message(sid, _readable(subject), _readable(reply), data, headers)

    def _flushed(self, flush: asyncio.Task[None]) -> None:
        self._flushes.discard(flush)
        if not flush.cancelled():
            flush.exception()  # retrieved, as asyncio logs it otherwise


class GuardedClient(NatsClient):
    """A client that drops messages that are not admitted when they are read, before they queue.

    ``admits(subject, bytes, headers)`` returns whether a message of that size is accepted.
    """

    def __init__(self, admits: Callable[[str, int, bytes], bool]) -> None:
        super().__init__()
        self._admits = admits

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if self._admits(subject.decode(errors="replace"), len(data), headers or b""):
            await super()._process_msg(sid, subject, reply, data, headers)


class BulkClient(NatsClient):
    """A client that passes each message to ``take(subject, data)`` as it is read.

    ``data`` is a part of what was read at once: keep a copy of what is needed later.

    nats-py makes an object of each message and hands it to a task by way of a queue, which takes as
    long as parsing it. Here no message waits in this process: a subscriber that falls behind slows
    the server down. ``take`` must not block or raise.
    """

    def __init__(self, take: Callable[[bytes, bytes | memoryview], None]) -> None:
        super().__init__()
        self._ps = _BulkParser(self)
        self.take = take

    @property
    def _transport(self) -> _Transport | None:
        return self._bulk_transport

    @_transport.setter
    def _transport(self, transport: _Transport | None) -> None:
        if transport is not None:
            transport.read_bytes = _READ_BYTES
        self._bulk_transport = transport

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        self.take(subject, data)


def _readable(name: bytes) -> bytes:
    return name.decode(errors="replace").encode()
