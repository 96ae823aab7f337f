"""The client survives what nats-py's does not: a late answer, and a close at a bad moment."""

import asyncio
import contextlib

import nats.errors
import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually, soon
from torchloom_core.floor.nats_client import BulkClient, GuardedClient, NatsClient
from torchloom_core.wire import codec, subjects


async def test_a_late_answer_to_a_flush_does_not_deafen_the_client(broker):
    client = NatsClient()
    await client.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    server = psutil.Process(broker.pid)
    server.suspend()
    await eventually(lambda: server.status() == psutil.STATUS_STOPPED)
    try:
        with pytest.raises(nats.errors.FlushTimeoutError):
            await client.flush(timeout=0.2)
    finally:
        server.resume()
    received = asyncio.Event()

    async def receive(message):
        received.set()

    await client.subscribe("tl.out.run.notice", cb=receive)
    await client.publish("tl.out.run.notice", b"")
    await soon(received.wait())
    await client.close()


class WatchedTransport:
    """A connection that signals when its end is awaited."""

    def __init__(self, transport):
        self._transport = transport
        self.waited_for = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._transport, name)

    async def wait_closed(self):
        self.waited_for.set()
        await self._transport.wait_closed()


async def test_a_client_that_reconnects_from_a_server_that_hangs_can_be_closed(broker):
    client = NatsClient()
    await client.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    client._transport = old_connection = WatchedTransport(client._transport)
    server = psutil.Process(broker.pid)
    server.suspend()

    async def publish():
        while True:
            await client.publish("tl.out.run.notice", bytes(1_000_000))

    publishing = asyncio.create_task(publish())
    try:
        sending = client._transport._io_writer.transport
        await eventually(sending.get_write_buffer_size)
        await client._process_op_err(nats.errors.StaleConnectionError())
        await soon(old_connection.waited_for.wait())
        await soon(client.close())
    finally:
        server.resume()
        publishing.cancel()
        await asyncio.wait({publishing})
    assert client.is_closed


# Unreadable: a status, a header, a reply subject.
UNREADABLE = {
    "status": (b"", b"NATS/1.0 503 \xff\xfe\r\n\r\n"),
    "description": (b"", b"NATS/1.0 100 \xff\r\na: b\r\n\r\n"),
    "header": (b"", b"NATS/1.0\r\na: \xff\r\n\xfe: b\r\n\r\n"),
    "no header": (b"", b"NATS/1.0\r\n\r\n"),
    "reply": (b" \xff\xfe", b""),
    "vertical tab": (b" a\x0bb", b""),
    "form feed": (b" 7\x0c5", b""),
}


@pytest.mark.parametrize(("reply", "header"), UNREADABLE.values(), ids=UNREADABLE)
async def test_an_unreadable_message_does_not_stop_the_weaver_from_receiving(
    bus, arrivals, connect_worker, connect_joiner, make, reply, header
):
    worker, joiner = await connect_worker("g0-0"), await connect_joiner()
    mine = subjects.telemetry("run", "g0-0", 1)
    batch = codec.encode_telemetry(make.telemetry())
    await _send(worker.client, mine.encode() + reply, header, batch)
    await _send(joiner.client, subjects.join("run").encode() + reply, header, b"{}")
    await worker.client.publish(mine, batch)
    await arrivals.until(lambda a: len(a.messages) == 2)
    assert bus._link.client.stats["reconnects"] == 0


async def _send(client, subjects_on_the_wire, header, data):
    """Publish bytes that nats-py refuses."""
    sizes = b"%d %d" % (len(header), len(header) + len(data)) if header else b"%d" % len(data)
    verb = b"HPUB" if header else b"PUB"
    line = b" ".join((verb, subjects_on_the_wire, sizes))
    await client._send_command(line + b"\r\n" + header + data + b"\r\n")
    await settle(client)


async def test_messages_that_are_not_admitted_delay_no_others(broker):
    checked = []

    def admits(subject, size, headers):
        checked.append((subject, size, headers))
        return subject == "tl.ctl.run.bob.status"

    client = GuardedClient(admits)
    await client.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    received = await client.subscribe("tl.ctl.run.*.status")
    for name in ("mallory", "mallory", "bob"):
        await client.publish(f"tl.ctl.run.{name}.status", b"xx")
    message = await received.next_msg(DEADLINE_S)
    assert message.subject == "tl.ctl.run.bob.status"
    assert (received._received, received.pending_msgs) == (1, 0)
    names = ("mallory", "mallory", "bob")
    assert checked == [(f"tl.ctl.run.{name}.status", 2, b"") for name in names]
    await client.close()


@pytest.mark.parametrize("at_once", [1, 7, 50, 1 << 20])
async def test_bulk_messages_are_taken_whole_and_in_order_however_they_are_cut(at_once):
    sizes = (0, 1, 5, (1 << 15) + 9, 3, 100)
    sent = [(b"tl.m%d" % n, bytes([65 + n]) * size) for n, size in enumerate(sizes)]
    wire = b"PING\r\n" + b"".join(
        (b"HMSG %s 1 2 %d\r\n\r\n%s\r\n" % (subject, len(data) + 2, data))
        if len(data) == 3
        else (b"MSG %s 1 inbox %d\r\n%s\r\n" % (subject, len(data), data))
        for subject, data in sent
    )
    taken, pings = [], []
    client = BulkClient(lambda subject, data: taken.append((subject, data)))

    async def ping():
        pings.append(len(taken))

    client._process_ping = ping
    for start in range(0, 2 * len(wire), at_once):
        await client._ps.parse((wire + wire)[start : start + at_once])
    assert taken == sent + sent
    assert pings == [0, len(sent)]


@pytest.mark.parametrize("opening", [b"MSG a 1 99999999999\r\n", b"", b"INFO "])
async def test_a_server_that_never_ends_a_message_is_left(opening):
    ended = asyncio.Event()

    async def serve(reader, writer):
        writer.write(b'INFO {"version": "2.15.1", "max_payload": 1048576}\r\n')
        await reader.readuntil(b"PING\r\n")
        writer.write(b"PONG\r\n" + opening)
        with contextlib.suppress(ConnectionError):
            while not ended.is_set():
                writer.write(b"A" * 65536)
                await writer.drain()
        writer.close()

    async def note_end():
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = NatsClient()
    port = server.sockets[0].getsockname()[1]
    url = f"nats://127.0.0.1:{port}"
    await client.connect(url, allow_reconnect=False, closed_cb=note_end)
    await soon(ended.wait())
    server.close()
