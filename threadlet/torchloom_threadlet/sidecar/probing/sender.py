"""Send to another sidecar's probe address, and measure the link."""

import asyncio
import os
import socket
import statistics
import time

from torchloom_core.floor.first_done import end_all
from torchloom_core.wire.links import Measured, ProbeAddress
from torchloom_core.wire.operations import Probe
from torchloom_threadlet.capability import OperationError
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


async def measure(operation: Probe) -> Measured:
    """Return the measurements of the link to the operation's receiver, within about four seconds.

    Raises OperationError if the link could not be measured.
    """
    receiver = operation.receiver
    try:
        async with asyncio.timeout(_CONNECT_S):
            peer = await _connect(operation.probe_address)
    except (OSError, UnicodeError) as error:
        raise OperationError(f"{receiver} could not be reached: {_why(error, operation)}") from None
    with peer:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await _probe(peer, operation)
        except TimeoutError:
            raise OperationError(f"{receiver} stalled for {_PATIENCE_S:g} s") from None
        except (OSError, ProtocolError) as error:
            raise OperationError(f"{receiver} broke off: {error}") from None


def _why(error: OSError | UnicodeError, operation: Probe) -> str:
    if isinstance(error, UnicodeError):
        return f"{operation.probe_address.host!r} is not a host"
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_S:g} s"
    number = getattr(error, "errno", None) or 0
    # asyncio's own text repeats the address; errors of name resolution are below 0.
    return os.strerror(number) if number > 0 else str(error)


async def _connect(probe_address: ProbeAddress) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(probe_address.host, probe_address.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    peer = socket.socket(family, kind, protocol)
    try:
        tune(peer)
        await loop.sock_connect(peer, address)
    except BaseException:
        peer.close()
        raise
    return peer


async def _probe(peer: socket.socket, operation: Probe) -> Measured:
    await _token(peer, operation)
    latency_s = await _least_round_trip_s(peer) / 2
    taken: list[Burst] = []
    for size in bursts(operation.probe_bytes):
        taken.append(await _send_burst(peer, size))
        if taken[-1].received < size:
            break
    return _measured(taken, latency_s, operation)


async def _token(peer: socket.socket, operation: Probe) -> None:
    token = operation.probe_address.token
    greeting = await receive(peer, len(GREETING) + NONCE_BYTES)
    if not greeting.startswith(GREETING):
        raise ProtocolError("it takes no probes")
    nonce = greeting[len(GREETING) :]
    await asyncio.get_running_loop().sock_sendall(
        peer, request(token, nonce, operation.probe_bytes)
    )
    try:
        mark = await receive(peer, MARK_BYTES)
    except ProtocolError:
        raise ProtocolError("it refuses probes now, or has another token") from None
    if mark != answer(token, nonce):
        raise ProtocolError("it does not have its own token")


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
    """Send a burst that a link cannot compress; return its timing at the receiver."""
    sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(peer, os.urandom(size)))
    try:
        return unpacked(await receive(peer, BURST_BYTES), size)
    finally:
        # The receiver has all of it, or has stopped reading.
        await end_all(sending)


def _measured(taken: list[Burst], latency_s: float, operation: Probe) -> Measured:
    rates = [min(burst.bytes_per_s, _FASTEST) for burst in taken if burst.bytes_per_s > 0]
    if taken[0].bytes_per_s > 0 and len(rates) > 1:
        del rates[0]
    if not rates:
        bytes_text = f"{sum(burst.received for burst in taken)} of {operation.probe_bytes} bytes"
        raise OperationError(f"{operation.receiver} got {bytes_text}, too few to time them")
    bytes_per_s = statistics.median(rates)
    spread = statistics.pstdev(rates) / bytes_per_s if len(rates) > 1 else None
    return Measured(
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        spread=None if spread is None else min(spread, _MOST_SPREAD),
    )
