"""A NATS connection of a few kilobytes, so that one process can hold thousands of them."""

import asyncio
import base64
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import nkeys

_END = b"\r\n"


class Message(NamedTuple):
    """A message that came in; ``status`` is the code of an answer without content, or empty."""

    subject: str
    reply: str
    status: str
    data: bytes


class ThinClient(asyncio.Protocol):
    """One connection with a user's JWT; an error of the server ends it.

    ``ready`` is done once the server has accepted the user, ``over`` with the server's error when
    the connection is closed.
    """

    def __init__(self, jwt: str, seed: str, name: str, take: Callable[[Message], None]) -> None:
        self._jwt, self._seed, self._name, self._take = jwt, seed, name, take
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.over: asyncio.Future[str] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._input = bytearray()
        self._error = ""

    @property
    def is_up(self) -> bool:
        """Whether the server has accepted the user, and the connection is open."""
        return self.ready.done() and not self.over.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the server speaks first."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End ``over`` and, if it still waits, ``ready``."""
        self._transport = None
        if not self.over.done():
            self.over.set_result(self._error or str(exc or "closed"))
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(self.over.result()))
            self.ready.exception()  # whether anything awaits it or not

    def data_received(self, data: bytes) -> None:
        """Handle every whole line and message."""
        self._input += data
        start = 0
        while (end := self._input.find(_END, start)) >= 0:
            line = bytes(self._input[start:end])
            after = end + len(_END)
            if line.startswith((b"MSG ", b"HMSG ")):
                size = int(line.rsplit(b" ", 1)[1])
                if len(self._input) < after + size + len(_END):
                    break
                self._on_message(line, bytes(self._input[after : after + size]))
                after += size + len(_END)
            else:
                self._on_line(line)
            start = after
        del self._input[:start]

    def _on_line(self, line: bytes) -> None:
        if line.startswith(b"PING"):
            self.write(b"PONG\r\n")
        elif line.startswith(b"PONG"):
            if not self.ready.done():
                self.ready.set_result(None)
        elif line.startswith(b"INFO ") and not self.ready.done():
            self._authenticate(msgspec.json.decode(line[5:])["nonce"])
        elif line.startswith(b"-ERR"):
            self._error = line.decode()

    def _authenticate(self, nonce: str) -> None:
        signature = nkeys.from_seed(bytearray(self._seed.encode())).sign(nonce.encode())
        connect = {
            "verbose": False,
            "pedantic": False,
            "lang": "python",
            "version": "0",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": self._name,
            "jwt": self._jwt,
            "sig": base64.b64encode(signature).decode(),
        }
        self.write(b"CONNECT " + msgspec.json.encode(connect) + b"\r\nPING\r\n")

    def _on_message(self, line: bytes, content: bytes) -> None:
        kind, subject, _, *rest = line.decode().split(" ")
        status = ""
        if kind == "HMSG":
            headers, content = content[: int(rest[-2])], content[int(rest[-2]) :]
            first = headers.split(_END, 1)[0].split(b" ")
            status = first[1].decode() if len(first) > 1 else ""
        reply = rest[0] if len(rest) == (3 if kind == "HMSG" else 2) else ""
        self._take(Message(subject, reply, status, content))

    def subscribe(self, number: int, subject: str) -> None:
        """Subscribe under a number of the caller's."""
        self.write(b"SUB %s %d\r\n" % (subject.encode(), number))

    def publish(self, subject: str, data: bytes, reply: str = "", message_id: str = "") -> None:
        """Send a message; ``message_id`` lets a stream drop it if it is sent again."""
        names = f"{subject} {reply}" if reply else subject
        if not message_id:
            head = f"PUB {names} {len(data)}\r\n".encode()
        else:
            headers = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n"
            size = len(headers)
            head = f"HPUB {names} {size} {size + len(data)}\r\n{headers}".encode()
        self.write(head + data + _END)

    @property
    def waiting_bytes(self) -> int:
        """How much was written that the server has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, data: bytes) -> None:
        """Send bytes as they are, if the connection is open."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def connect(
    port: int,
    source: str,
    jwt: str,
    seed: str,
    name: str,
    take: Callable[[Message], None],
    s: float,
) -> ThinClient:
    """Connect from the loopback address ``source`` within ``s`` seconds.

    Raises
    ------
    OSError
        If the server refuses, or TimeoutError if it does not answer.
    """
    loop = asyncio.get_running_loop()
    client = None
    try:
        async with asyncio.timeout(s):
            _, client = await loop.create_connection(
                lambda: ThinClient(jwt, seed, name, take), "127.0.0.1", port, local_addr=(source, 0)
            )
            await client.ready
    except BaseException:
        if client is not None:
            client.close()
        raise
    return client
