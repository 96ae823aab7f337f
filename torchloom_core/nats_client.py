"""nats-py's client, less its traps; the Weaver and the sidecars connect with it."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol import parser

from torchloom_core.server_urls import parse_servers

# A server takes a vertical tab or a form feed for a part of a name, nats-py for the end of it: it
# then finds no message in the line, and hangs up.
_TO = rb"[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)"
parser.MSG_RE = re.compile(rb"\AMSG" + _TO + rb"\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG" + _TO + rb"[ \t]+(\d+)\r\n")

_FLUSH_S = 2.0

_LONGEST_MESSAGE_BYTES = 4 << 20
_LONGEST_LINE_BYTES = 1 << 17
"""Four times what a server passes on, and many times what it says of itself."""

_LONGEST_S = 60
"""By then the client's own pings have found a silent connection dead, and made another."""


class _Parser(parser.Parser):  # type: ignore[misc]
    """nats-py's parser, which does not keep for ever what a server sends without an end."""

    async def parse(self, data: bytes = b"") -> None:
        """Take in what came from the server.

        Raises
        ------
        nats.errors.ProtocolError
            If it is no message, or has no end.
        """
        await super().parse(data)
        longest = len(self.buf)
        if self.state == parser.AWAITING_CONTROL_LINE:
            longest = _LONGEST_LINE_BYTES
        if len(self.buf) > longest or self.needed > _LONGEST_MESSAGE_BYTES:
            raise nats.errors.ProtocolError


class NatsClient(Client):  # type: ignore[misc]  # nats-py has no types
    """A client that no message deafens, that can be closed at any moment, a flush given up.

    nats-py cancels the future of a flush that takes too long; the PONG that comes after all then
    ends the task that reads from the server, and nothing more is heard. Here the flush goes on
    behind the back of who has given it up.

    It also cancels a reconnect that is under way when it is closed. Where that one waits for the
    old connection to end, what both wait for is cancelled, and nobody had cancelled who closes.

    What reads from the server ends over a reply subject or a status that is no UTF-8, which
    whoever may publish at all may send. Here such a status is none, and such a subject has other
    characters.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)
        self._flushes: set[asyncio.Task[None]] = set()

    async def connect(self, servers: str, **options: Any) -> None:
        """Connect to one of the servers in a list of URLs, with the user and password in them.

        Raises
        ------
        ValueError
            If the URLs have different ones.
        nats.errors.Error
            If no server can be reached, or none takes the client.
        """
        login = parse_servers(servers)
        own = {"user": login.user, "password": login.password, "token": login.token}
        await super().connect(servers=login.urls, **own, **options)

    async def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until the server has handled what was sent.

        Raises
        ------
        nats.errors.FlushTimeoutError
            If it takes longer than ``timeout``, seconds.
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
        if not headers:  # asked first, since nearly no message has any
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
            flush.exception()  # whoever still waited for it has it; else nobody wants it


class GuardedClient(NatsClient):
    """A client that drops what is not admitted as it is read, before it waits behind anything.

    Parameters
    ----------
    admits : callable
        ``(subject, bytes)``: whether a message of that size is let in.
    """

    def __init__(self, admits: Callable[[str, int], bool]) -> None:
        super().__init__()
        self._admits = admits

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        if self._admits(subject.decode(errors="replace"), len(data)):
            await super()._process_msg(sid, subject, reply, data, headers)


def _readable(name: bytes) -> bytes:
    return name.decode(errors="replace").encode()
