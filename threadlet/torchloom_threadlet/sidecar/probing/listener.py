"""Accepts probes from other sidecars that present the token from the Weaver."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator

import msgspec

from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.wire.links import Host, ProbeAddress
from torchloom_threadlet.sidecar.probing.protocol import (
    GREETING,
    MEASURES_S,
    NONCE_BYTES,
    PINGS,
    REQUEST_BYTES,
    Burst,
    ProtocolError,
    answer,
    bursts,
    packed,
    receive,
    requested,
    tune,
)

_MOST_PEERS = 8
"""The most open connections that have not presented the token; one with the token is served."""

_BACKLOG = 16
_TOKEN_S = 1.0
_LINGER_S = 0.5
_BETWEEN_S = 0.02
"""The pause between two accepted connections, in seconds: it limits the cost of a flood."""

_REST_S = 1.0
_READ_BYTES = 1 << 20

_logger = logging.getLogger(__name__)


class ProbeListener:
    """Listens at an address and times incoming data, one probe at a time.

    ``address``: this host's address for other hosts, at which it listens; empty: no listening.
    ``address``: what the Weaver gets of it, None while it does not listen.
    """

    def __init__(self, address: str, on_open: Callable[[], None]) -> None:
        self._address = address
        self._on_open = on_open
        self._peers: set[asyncio.Task[None]] = set()
        self._serves = False
        self._limited_log = RateLimitedLog(_logger)
        self.address: ProbeAddress | None = None

    async def run(self) -> None:
        """Accept probes for ever; return at once without an address to listen at."""
        if not self._address:
            return
        try:
            host = msgspec.convert(self._address, Host)
            listener = await _listen(host)
        except (OSError, ValueError) as error:
            text = "TORCHLOOM_LINK_ADDRESS: need an address of this host, was %r: %s"
            is_none = isinstance(error, UnicodeError | msgspec.ValidationError)
            why = "not a host" if is_none else plain_line(str(error))
            _logger.warning(text, plain_line(self._address), why)
            return
        with listener:
            port = listener.getsockname()[1]
            self._token = secrets.token_hex(32)
            self.address = ProbeAddress(host=host, port=port, token=self._token)
            self._on_open()
            while True:
                await self._take_in(listener)

    async def _take_in(self, listener: socket.socket) -> None:
        try:
            peer, _ = await asyncio.get_running_loop().sock_accept(listener)
        except OSError as error:  # such as too few file descriptors
            self._limited_log.add("accept", f"cannot accept a probe: {error}")
            await asyncio.sleep(_REST_S)
            return
        if len(self._peers) < _MOST_PEERS:
            task = asyncio.create_task(self._receive(peer))
            self._peers.add(task)
            task.add_done_callback(self._peers.discard)
        else:
            peer.close()
        await asyncio.sleep(_BETWEEN_S)

    async def _receive(self, peer: socket.socket) -> None:
        nonce = os.urandom(NONCE_BYTES)
        with peer:
            try:
                tune(peer)
                probe_bytes = await self._presented_token(peer, nonce)
                with self._alone():
                    await _measure(peer, answer(self._token, nonce), probe_bytes)
            except (OSError, ProtocolError) as error:  # a TimeoutError is an OSError
                why = str(error) or "it stalled"
                self._limited_log.add("peer", f"refused a probe: {why}")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if self._serves:
            raise ProtocolError("another one is in progress")
        self._serves = True
        try:
            yield
        finally:
            self._serves = False

    async def _presented_token(self, peer: socket.socket, nonce: bytes) -> int:
        """Return how much a peer with the token will send."""
        async with asyncio.timeout(_TOKEN_S):
            await asyncio.get_running_loop().sock_sendall(peer, GREETING + nonce)
            return requested(self._token, nonce, await receive(peer, REQUEST_BYTES))


async def _listen(host: str) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
    if (getattr(ip, "ipv4_mapped", None) or ip).is_unspecified:
        raise ValueError("other hosts cannot reach this address")
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


async def _measure(peer: socket.socket, let_in: bytes, probe_bytes: int) -> None:
    """Admit the peer, echo pings and time bursts, until the time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MEASURES_S
    async with asyncio.timeout_at(until):
        await loop.sock_sendall(peer, let_in)
        for _ in range(PINGS):
            await loop.sock_sendall(peer, await receive(peer, 1))
    for size in bursts(probe_bytes):
        burst = await _take_burst(peer, size, until)
        async with asyncio.timeout(_LINGER_S):
            await loop.sock_sendall(peer, packed(burst))
        if burst.received < size:
            break
    peer.shutdown(socket.SHUT_WR)
    # Unread data would reset the connection, and lose the answer.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while await loop.sock_recv(peer, _READ_BYTES):
                pass


async def _take_burst(peer: socket.socket, size: int, until: float) -> Burst:
    """Return the timing of a burst; data that the socket holds at its beginning is not timed."""
    loop = asyncio.get_running_loop()
    room = memoryview(bytearray(min(size, _READ_BYTES)))
    first = received = first_ns = last_ns = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            while received < size:
                count = await loop.sock_recv_into(peer, room[: size - received])
                if not count:
                    raise ProtocolError("it closed the connection")
                last_ns = time.perf_counter_ns()
                if not received:
                    first, first_ns = count, last_ns
                received += count
    return Burst(received, received - first, (last_ns - first_ns) / 1e9)
