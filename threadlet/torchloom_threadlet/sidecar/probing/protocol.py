"""The protocol of a probe between two sidecars, over one TCP connection.

=========  ========  ==========================================================
from       bytes     message
=========  ========  ==========================================================
receiver   24        :data:`GREETING` and a nonce
sender     36        how much it will send, and a mark that proves it has the token
receiver   32        such a mark of its own
both       1 + 1     a ping and its echo, :data:`PINGS` times
sender     varies    a burst, :data:`BURSTS` times, each answered with
receiver   16        a :class:`Burst`
=========  ========  ==========================================================

The token itself is never sent. A peer without it, or one that breaks a rule, is disconnected.
"""

import asyncio
import hashlib
import hmac
import math
import socket
import struct
from typing import NamedTuple

from torchloom_core.wire.links import MAX_PROBE_BYTES, MIN_PROBE_BYTES

GREETING = b"tlprobe1"
NONCE_BYTES = 16
MARK_BYTES = 32
PINGS = 5
BURSTS = 5
"""The first burst opens TCP's window and empties token buckets on the way."""

MEASURES_S = 2.0
"""The longest time of a probe's measurement, in seconds; then the bursts so far count."""

_SIZE = struct.Struct(">I")
_BURST = struct.Struct(">IId")
REQUEST_BYTES = _SIZE.size + MARK_BYTES
BURST_BYTES = _BURST.size


class ProtocolError(Exception):
    """The other side sent something invalid, or closed the connection."""


class Burst(NamedTuple):
    """The timing of a burst.

    ``timed``: those of them that arrived after the first, within ``seconds``.
    """

    received: int
    timed: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Return the rate, 0 if the burst arrived all at once."""
        return self.timed / self.seconds if self.timed and self.seconds > 0 else 0.0


def bursts(probe_bytes: int) -> list[int]:
    """Return the sizes of all bursts.

    Examples
    --------
    >>> bursts(100_002)
    [20002, 20000, 20000, 20000, 20000]
    """
    each, more = divmod(probe_bytes, BURSTS)
    return [each + more, *[each] * (BURSTS - 1)]


def request(token: str, nonce: bytes, probe_bytes: int) -> bytes:
    """Return a sender's request to send ``probe_bytes``."""
    size = _SIZE.pack(probe_bytes)
    return size + _mark(token, b"sender", nonce, size)


def requested(token: str, nonce: bytes, message: bytes) -> int:
    """Return how much the sender wants to send; ProtocolError if it may not."""
    size = message[: _SIZE.size]
    if not hmac.compare_digest(message[_SIZE.size :], _mark(token, b"sender", nonce, size)):
        raise ProtocolError("it does not have the token")
    (probe_bytes,) = _SIZE.unpack(size)
    if not MIN_PROBE_BYTES <= probe_bytes <= MAX_PROBE_BYTES:
        raise ProtocolError(f"it wants to send {probe_bytes} bytes")
    return int(probe_bytes)


def answer(token: str, nonce: bytes) -> bytes:
    """Return the receiver's answer that lets the sender send."""
    return _mark(token, b"receiver", nonce, b"")


def _mark(token: str, side: bytes, nonce: bytes, size: bytes) -> bytes:
    key = bytes.fromhex(token)
    return hashlib.blake2b(side + nonce + size, key=key, digest_size=MARK_BYTES).digest()


def packed(burst: Burst) -> bytes:
    """Return a burst as bytes."""
    return _BURST.pack(*burst)


def unpacked(data: bytes, size: int) -> Burst:
    """Return the burst in ``data``, one of ``size`` bytes; ProtocolError if it cannot be one."""
    burst = Burst(*_BURST.unpack(data))
    if not burst.timed <= burst.received <= size or not 0 <= burst.seconds < math.inf:
        raise ProtocolError(f"it received {burst.received} of {size} bytes in {burst.seconds} s")
    return burst


async def receive(peer: socket.socket, size: int) -> bytes:
    """Return the next ``size`` bytes; ProtocolError if the other side closes before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < size:
        part = await loop.sock_recv(peer, size - len(data))
        if not part:
            raise ProtocolError("it closed the connection")
        data += part
    return data


def tune(peer: socket.socket) -> None:
    """Make a socket send at once, and never block."""
    peer.setblocking(False)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
