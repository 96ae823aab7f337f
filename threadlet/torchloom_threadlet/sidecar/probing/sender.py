"""Send to another sidecar's door, and say what its link carries."""

import asyncio
import os
import socket
import statistics
import time

from torchloom_core.wire.links import Door, Measured
from torchloom_core.wire.messages import Probe
from torchloom_threadlet.sidecar.probing.protocol import (
    BURST_BYTES,
    GREETING,
    MARK_BYTES,
    MEASURES_S,
    NONCE_BYTES,
    PINGS,
    Burst,
    ProtocolError,
    answer,
    bursts,
    receive,
    request,
    tune,
    unpacked,
)

_CONNECT_S = 1.0
_PATIENCE_S = MEASURES_S + 1.0
_FASTEST = 1e15
_MOST_SPREAD = 1e6


class ProbeFailedError(Exception):
    """Nothing was measured; says why, in one line."""


async def measure(deed: Probe) -> Measured:
    """Return what the link to the deed's receiver carries, within about four seconds.

    Raises
    ------
    ProbeFailedError
        If nothing could be measured.
    """
    receiver = deed.receiver
    try:
        async with asyncio.timeout(_CONNECT_S):
            peer = await _connect(deed.door)
    except (OSError, UnicodeError) as error:
        raise ProbeFailedError(f"{receiver} could not be reached: {_why(error, deed)}") from None
    with peer:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await _probe(peer, deed)
        except TimeoutError:
            raise ProbeFailedError(f"{receiver} stalled for {_PATIENCE_S:g} s") from None
        except (OSError, ProtocolError) as error:
            raise ProbeFailedError(f"{receiver} broke off: {error}") from None


def _why(error: OSError | UnicodeError, deed: Probe) -> str:
    if isinstance(error, UnicodeError):
        return f"{deed.door.host!r} is no host"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_S:g} s"
    number = getattr(error, "errno", None) or 0
    # asyncio's own text repeats the address; those of a name that cannot be found are below 0.
    return os.strerror(number) if number > 0 else str(error)


async def _connect(door: Door) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(door.host, door.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    peer = socket.socket(family, kind, protocol)
    try:
        tune(peer)
        await loop.sock_connect(peer, address)
    except BaseException:
        peer.close()
        raise
    return peer


async def _probe(peer: socket.socket, deed: Probe) -> Measured:
    await _knock(peer, deed)
    latency_s = await _least_round_trip_s(peer) / 2
    taken: list[Burst] = []
    for size in bursts(deed.probe_bytes):
        taken.append(await _send_burst(peer, size))
        if taken[-1].received < size:
            break
    return _measured(taken, latency_s, deed)


async def _knock(peer: socket.socket, deed: Probe) -> None:
    knock = deed.door.knock
    greeting = await receive(peer, len(GREETING) + NONCE_BYTES)
    if not greeting.startswith(GREETING):
        raise ProtocolError("it takes no probes")
    nonce = greeting[len(GREETING) :]
    await asyncio.get_running_loop().sock_sendall(peer, request(knock, nonce, deed.probe_bytes))
    try:
        said = await receive(peer, MARK_BYTES)
    except ProtocolError:
        raise ProtocolError("it lets nobody in now, or has another knock") from None
    if said != answer(knock, nonce):
        raise ProtocolError("it does not know its own knock")


async def _least_round_trip_s(peer: socket.socket) -> float:
    loop = asyncio.get_running_loop()
    least_ns = 0
    for _ in range(PINGS):
        sent_ns = time.perf_counter_ns()
        await loop.sock_sendall(peer, b".")
        await receive(peer, 1)
        took_ns = time.perf_counter_ns() - sent_ns
        least_ns = min(least_ns or took_ns, took_ns)
    return least_ns / 1e9


async def _send_burst(peer: socket.socket, size: int) -> Burst:
    """Send a burst, of which a link that compresses makes nothing; return how it came in."""
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(peer, os.urandom(size)))
    try:
        return unpacked(await receive(peer, BURST_BYTES), size)
    finally:
        # The receiver has all of it, or wants no more.
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def _measured(taken: list[Burst], latency_s: float, deed: Probe) -> Measured:
    rates = [min(burst.bytes_per_s, _FASTEST) for burst in taken if burst.bytes_per_s > 0]
    if taken[0].bytes_per_s > 0 and len(rates) > 1:
        del rates[0]
    if not rates:
        came = f"{sum(burst.received for burst in taken)} of {deed.probe_bytes} bytes came"
        raise ProbeFailedError(f"{came} to {deed.receiver}, too few at a time to be timed")
    bytes_per_s = statistics.median(rates)
    spread = statistics.pstdev(rates) / bytes_per_s if len(rates) > 1 else None
    return Measured(
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        spread=None if spread is None else min(spread, _MOST_SPREAD),
    )
