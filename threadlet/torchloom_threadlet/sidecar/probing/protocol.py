"""What the two sidecars of a probe say to each other over one TCP connection.

=========  ========  ==========================================================
who        bytes     what
=========  ========  ==========================================================
receiver   24        :data:`GREETING` and a nonce
sender     36        how much it will send, and a mark that only who has the token can make
receiver   32        such a mark of its own
both       1 + 1     a ping and its echo, :data:`PINGS` times
sender     as said   a burst, :data:`BURSTS` times, each answered with
receiver   16        a :class:`Burst`
=========  ========  ==========================================================

The token itself never travels. Who is not let in, or breaks a rule, finds the connection closed.
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
"""The first one opens TCP's window and empties token buckets on the way."""

MEASURES_S = 2.0
"""How long a probe measures at the most; then what was measured so far counts."""

_SIZE = struct.Struct(">I")
_BURST = struct.Struct(">IId")
REQUEST_BYTES = _SIZE.size + MARK_BYTES
BURST_BYTES = _BURST.size


class ProtocolError(Exception):
    """The other side said what it may not, or nothing more."""


class Burst(NamedTuple):
    """How a burst came in.

    Attributes
    ----------
    received : int
        All bytes that came before the time was over.
    timed : int
        Those of them that came after the first, within ``seconds``.
    """

    received: int
    timed: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """Return the rate, 0 where the burst came at one moment."""
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
    """Return what a sender says that wants to send ``probe_bytes``."""
    size = _SIZE.pack(probe_bytes)
    return size + _mark(token, b"sender", nonce, size)


def requested(token: str, nonce: bytes, said: bytes) -> int:
    """Return how much the sender wants to send; ProtocolError if it may not."""
    size = said[: _SIZE.size]
    if not hmac.compare_digest(said[_SIZE.size :], _mark(token, b"sender", nonce, size)):
        raise ProtocolError("it does not know the token")
    (probe_bytes,) = _SIZE.unpack(size)
    if not MIN_PROBE_BYTES <= probe_bytes <= MAX_PROBE_BYTES:
        raise ProtocolError(f"it wants to send {probe_bytes} bytes")
    return int(probe_bytes)


def answer(token: str, nonce: bytes) -> bytes:
    """Return what the receiver says once the sender may send."""
    return _mark(token, b"receiver", nonce, b"")


def _mark(token: str, side: bytes, nonce: bytes, size: bytes) -> bytes:
    key = bytes.fromhex(token)
    return hashlib.blake2b(side + nonce + size, key=key, digest_size=MARK_BYTES).digest()


def packed(burst: Burst) -> bytes:
    """Return a burst as bytes."""
    return _BURST.pack(*burst)


def unpacked(said: bytes, size: int) -> Burst:
    """Return the burst in ``said``, one of ``size`` bytes; ProtocolError if it cannot be one."""
    burst = Burst(*_BURST.unpack(said))
    if not burst.timed <= burst.received <= size or not 0 <= burst.seconds < math.inf:
        raise ProtocolError(f"it took in {burst.received} of {size} bytes in {burst.seconds} s")
    return burst


async def receive(peer: socket.socket, size: int) -> bytes:
    """Return the next ``size`` bytes; ProtocolError if the other side has no more to say."""
    loop = asyncio.get_running_loop()
    said = b""
    while len(said) < size:
        part = await loop.sock_recv(peer, size - len(said))
        if not part:
            raise ProtocolError("it closed the connection")
        said += part
    return said


def tune(peer: socket.socket) -> None:
    """Have a socket send at once what it is given, and never block."""
    peer.setblocking(False)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
