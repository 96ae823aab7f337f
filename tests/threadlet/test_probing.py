"""Two sidecars measure the link between them; a listener serves no other client."""

import asyncio
import contextlib
import dataclasses
import math
import os
import socket
import time

import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import eventually, soon
from torchloom_core.floor.first_done import end_all
from torchloom_core.wire.links import MAX_PROBE_BYTES, MIN_PROBE_BYTES, ProbeAddress
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Probe
from torchloom_threadlet.capability import OperationError
from torchloom_threadlet.sidecar.probing import listener, protocol
from torchloom_threadlet.sidecar.probing import sender as senders
from torchloom_threadlet.sidecar.probing.listener import ProbeListener
from torchloom_threadlet.sidecar.probing.sender import measure

HERE = "127.0.0.1"
PROBE_TOKEN = "0" * 64


@dataclasses.dataclass
class Open:
    """A listener that accepts probes on this loop."""

    at: ProbeListener
    task: asyncio.Task

    def operation(self, probe_bytes=1 << 20, **changes):
        probe_address = self.at.address
        fields = {
            "host": probe_address.host,
            "port": probe_address.port,
            "token": probe_address.token,
            **changes,
        }
        return Probe(receiver="g1-0", probe_address=ProbeAddress(**fields), probe_bytes=probe_bytes)

    def guest(self):
        peer = socket.create_connection((HERE, self.at.address.port))
        peer.setblocking(False)
        return peer


@pytest.fixture
async def opened():
    is_open = asyncio.Event()
    at = ProbeListener(HERE, is_open.set)
    task = asyncio.create_task(at.run())
    await soon(is_open.wait())
    yield Open(at, task)
    assert not task.done()
    await end_all(task)


async def closed(peer):
    """Read what a listener sends until it closes the connection, or resets it."""
    loop, received = asyncio.get_running_loop(), b""
    with contextlib.suppress(ConnectionError):
        while part := await soon(loop.sock_recv(peer, 1 << 16)):
            received += part
    return received


async def failure(operation):
    with pytest.raises(OperationError) as raised:
        await soon(measure(operation))
    text = str(raised.value)
    assert "\n" not in text
    return text


@contextlib.asynccontextmanager
async def served_by(serve, probe_bytes=1 << 20):
    """Serve a port with a function, and yield the operation that probes it."""
    async with await asyncio.start_server(serve, HERE, 0) as server:
        yield probe_of(server.sockets[0].getsockname()[1], probe_bytes)


def probe_of(port, probe_bytes=1 << 20):
    address = ProbeAddress(host=HERE, port=port, token=PROBE_TOKEN)
    return Probe(receiver="g1-0", probe_address=address, probe_bytes=probe_bytes)


@pytest.mark.parametrize("probe_bytes", [1 << 20, MAX_PROBE_BYTES])
async def test_a_link_is_measured(opened, probe_bytes):
    measured = await soon(measure(opened.operation(probe_bytes)))
    assert measured.bytes_per_s > 1e6
    assert 0 < measured.latency_s < DEADLINE_S


async def test_the_rate_is_that_of_the_slowest_link_on_the_path(opened):
    async with slowed(opened, bytes_per_s=4e6) as port:
        measured = await soon(measure(opened.operation(1 << 20, port=port)))
    assert measured.bytes_per_s < 6e6  # loopback is a hundred times faster
    assert measured.spread is not None


@pytest.mark.slow
async def test_a_link_too_slow_for_the_whole_probe_is_measured_from_its_part(opened):
    async with slowed(opened, bytes_per_s=2e5) as port:
        measured = await soon(measure(opened.operation(MAX_PROBE_BYTES, port=port)))
    assert 0 < measured.bytes_per_s < 4e5
    assert measured.spread is None


@contextlib.asynccontextmanager
async def slowed(opened, bytes_per_s):
    """Forward data from a port of its own, at a limited rate."""
    stack = contextlib.AsyncExitStack()

    async def pass_on(reader, writer):
        other_reader, other_writer = await asyncio.open_connection(HERE, opened.at.address.port)
        for task in (
            asyncio.create_task(copy(reader, other_writer, bytes_per_s)),
            asyncio.create_task(copy(other_reader, writer, math.inf)),
        ):
            stack.push_async_callback(asyncio.gather, task, return_exceptions=True)
            stack.callback(task.cancel)

    server = await asyncio.start_server(pass_on, HERE, 0, limit=16 << 10)
    async with server, stack:
        yield server.sockets[0].getsockname()[1]


async def copy(reader, writer, bytes_per_s):
    due = 0.0
    try:
        while data := await reader.read(8 << 10):
            due = max(due, time.perf_counter()) + len(data) / bytes_per_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_a_closed_port_is_reported(opened):
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    text = await failure(opened.operation(port=port))
    assert text.startswith("g1-0 could not be reached: ")
    assert "refused" in text


async def test_a_sender_with_another_token_is_refused(opened):
    assert "has another token" in await failure(opened.operation(token=PROBE_TOKEN))
    assert (await soon(measure(opened.operation()))).bytes_per_s > 0


async def test_a_receiver_without_its_token_is_sent_nothing():
    received = []

    async def pretend(reader, writer):
        writer.write(protocol.GREETING + bytes(protocol.NONCE_BYTES))
        await reader.readexactly(protocol.REQUEST_BYTES)
        writer.write(bytes(protocol.MARK_BYTES))
        received.append(await reader.read())
        writer.close()

    async with served_by(pretend) as operation:
        assert "does not have its own token" in await failure(operation)
        await eventually(lambda: received)
    assert received == [b""]


@pytest.mark.parametrize(
    "greeting", [b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", b"", b"\x00" * 24, b"tlprobe2" + bytes(16)]
)
async def test_another_kind_of_server_is_sent_nothing_unasked(greeting):
    received = []

    async def other(reader, writer):
        writer.write(greeting)
        writer.write_eof()
        try:
            received.append(await reader.read())
        except ConnectionError:  # it has closed before it read everything
            received.append(b"")
        writer.close()

    async with served_by(other) as operation:
        assert "broke off" in await failure(operation)
        await eventually(lambda: received)
    assert received == [b""]


@pytest.mark.parametrize("lies", [{1}, {1, 3}, {1, 2, 3, 4}])
@pytest.mark.parametrize("seconds", [5e-324, 1e-300, 1e300])
async def test_a_receiver_that_lies_is_measured_within_the_limits(seconds, lies):
    async def lie(reader, writer):
        writer.write(protocol.GREETING + bytes(protocol.NONCE_BYTES))
        await reader.readexactly(protocol.REQUEST_BYTES)
        writer.write(protocol.answer(PROBE_TOKEN, bytes(protocol.NONCE_BYTES)))
        for _ in range(protocol.PINGS):
            writer.write(await reader.readexactly(1))
        for number, size in enumerate(protocol.bursts(MIN_PROBE_BYTES)):
            await reader.readexactly(size)
            took = seconds if number in lies else 1.0
            writer.write(protocol.packed(protocol.Burst(size, size - 1, took)))
        writer.close()

    async with served_by(lie, MIN_PROBE_BYTES) as operation:
        measured = await soon(measure(operation))
    assert 0 < measured.bytes_per_s <= 1e15
    assert 0 <= measured.spread <= 1e6


@pytest.mark.parametrize("stalls_after", ["greeting", "answer", "pings", "half a burst"])
async def test_a_stalled_receiver_is_reported_in_time(stalls_after, monkeypatch):
    monkeypatch.setattr(senders, "_PATIENCE_S", 0.5)
    forever = asyncio.Event()

    async def stall(reader, writer):
        writer.write(protocol.GREETING + bytes(protocol.NONCE_BYTES))
        if stalls_after != "greeting":
            await reader.readexactly(protocol.REQUEST_BYTES)
            writer.write(protocol.answer(PROBE_TOKEN, bytes(protocol.NONCE_BYTES)))
        if stalls_after in ("pings", "half a burst"):
            for _ in range(protocol.PINGS):
                writer.write(await reader.readexactly(1))
        if stalls_after == "half a burst":
            await reader.readexactly(1000)
        await forever.wait()
        writer.close()

    async with served_by(stall, MAX_PROBE_BYTES) as operation:
        assert await failure(operation) == "g1-0 stalled for 0.5 s"
        forever.set()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 5])
async def test_a_sender_that_stalls_before_the_token_is_refused(opened, sent, caplog):
    with opened.guest() as peer:
        await asyncio.get_running_loop().sock_sendall(peer, sent)
        assert len(await closed(peer)) == len(protocol.GREETING) + protocol.NONCE_BYTES
    assert caplog.messages == ["refused a probe: it stalled (1 so far)"]
    assert (await soon(measure(opened.operation()))).bytes_per_s > 0


@pytest.mark.parametrize("size", [36, 1 << 20])
async def test_garbage_is_refused(opened, size):
    with opened.guest() as peer:
        with contextlib.suppress(ConnectionError):
            await soon(asyncio.get_running_loop().sock_sendall(peer, os.urandom(size)))
        assert len(await closed(peer)) <= len(protocol.GREETING) + protocol.NONCE_BYTES
    assert (await soon(measure(opened.operation()))).bytes_per_s > 0


@pytest.mark.parametrize("size", [0, MIN_PROBE_BYTES - 1, MAX_PROBE_BYTES + 1, 2**32 - 1])
async def test_a_sender_with_the_token_that_requests_too_much_is_refused(opened, size):
    assert "refuses probes now" in await failure(opened.operation(size))


@pytest.mark.slow
async def test_a_sender_that_stalls_in_a_burst_frees_the_probe_address(opened):
    with opened.guest() as peer:
        loop = asyncio.get_running_loop()
        greeting = await soon(protocol.receive(peer, len(protocol.GREETING) + protocol.NONCE_BYTES))
        token = opened.at.address.token
        nonce = greeting[len(protocol.GREETING) :]
        await loop.sock_sendall(peer, protocol.request(token, nonce, 1 << 20))
        await soon(protocol.receive(peer, protocol.MARK_BYTES))
        for _ in range(protocol.PINGS):
            await loop.sock_sendall(peer, b".")
            await soon(protocol.receive(peer, 1))
        await loop.sock_sendall(peer, bytes(1000))
        assert "refuses probes now" in await failure(opened.operation())  # one at a time
        received = await soon(protocol.receive(peer, protocol.BURST_BYTES))
        for _ in range(2):  # data in flight does not reset the connection
            await loop.sock_sendall(peer, bytes(1000))
            assert await soon(loop.sock_recv(peer, 1)) == b""
    assert protocol.unpacked(received, 1 << 20).received == 1000
    await eventually(lambda: not opened.at._serves)
    assert (await soon(measure(opened.operation()))).bytes_per_s > 0


async def test_a_flood_keeps_few_connections_open_and_leaves_none(opened):
    with contextlib.ExitStack() as stack:
        for _ in range(listener._MOST_PEERS + 4):
            stack.enter_context(opened.guest())
        await eventually(lambda: len(opened.at._peers) == listener._MOST_PEERS)
        assert "broke off" in await failure(opened.operation())
        assert len(opened.at._peers) <= listener._MOST_PEERS
    await eventually(lambda: not opened.at._peers)

    async def is_measured():
        with contextlib.suppress(OperationError):
            return await measure(opened.operation())

    assert (await eventually(is_measured)).bytes_per_s > 0


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "::",
        "::ffff:0.0.0.0",
        "no-such-host.invalid",
        "192.0.2.1",
        "a b",
        "x" * 300,
        "..",
    ],
)
async def test_an_address_of_another_host_is_reported_and_nothing_listens(address, caplog):
    received = []
    at = ProbeListener(address, lambda: received.append("open"))
    await soon(at.run())
    assert at.address is None
    assert not received
    (line,) = caplog.messages
    assert line.startswith("TORCHLOOM_LINK_ADDRESS: need an address of this host, was ")
    assert "codec" not in line
    assert "Expected" not in line


async def test_without_an_address_nothing_listens_and_nothing_is_logged(caplog):
    at = ProbeListener("", lambda: None)
    await soon(at.run())
    assert at.address is None
    assert not caplog.messages


@pytest.fixture
def two(start_trainer):
    """Two trainers in processes of their own, whose sidecars accept probes."""
    for group in ("g0", "g1"):
        start_trainer(name=group, TORCHLOOM_GROUP=group, TORCHLOOM_LINK_ADDRESS=HERE)


@pytest.mark.long
@pytest.mark.integration
async def test_two_workers_measure_their_link_through_their_sidecars(weaver, two):
    sender = await weaver.admit("g0-0")
    receiver = await weaver.until(
        lambda: next(
            (
                e
                for e in weaver.events
                if isinstance(e, Hello) and e.worker == "g1-0" and e.probe_address
            ),
            None,
        )
    )
    assert "probe" in receiver.actuators
    operation = Probe(receiver="g1-0", probe_address=receiver.probe_address, probe_bytes=1 << 20)
    await weaver.until(
        lambda: any(e.worker == "g0-0" and getattr(e, "probe_address", None) for e in weaver.events)
    )
    ack = await weaver.ask(sender, operation)
    assert ack.status == "applied", ack.detail
    assert ack.measured.bytes_per_s > 1e6
    assert "MB/s" in ack.detail
    again = await weaver.ask(sender, operation, epoch=2)  # a Weaver that missed the ack
    assert (again.status, again.measured) == ("applied", ack.measured)
    wrong = probe_of(receiver.probe_address.port)
    ack = await weaver.ask(sender, wrong, "c2", epoch=2)
    assert (ack.status, ack.measured) == ("failed", None)
    assert "another token" in ack.detail


@pytest.mark.integration
async def test_a_worker_without_an_address_offers_no_probing_and_refuses_it(weaver, start_trainer):
    start_trainer()
    hello = await weaver.admit()
    assert hello.probe_address is None
    assert "probe" not in hello.actuators
    ack = await weaver.ask(hello, probe_of(1))
    assert (ack.status, ack.detail) == (
        "rejected",
        "this worker takes no probes: TORCHLOOM_LINK_ADDRESS is not set or not usable",
    )
