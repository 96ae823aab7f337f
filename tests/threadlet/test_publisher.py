"""The sidecar's messages are sent, however full its queue is and whatever the broker does."""

import asyncio
import os
import signal

import nats
import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.floor.first_done import end_all
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_REPORT_BYTES, decode_event, encode
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_threadlet.sidecar.publisher import Publisher

HELLO = Hello(run="run", worker="g0-0", incarnation=1, group="g0", rank=0, node="n1")
EXIT = Exit(run="run", worker="g0-0", incarnation=1, status=-9, expected=False)


def note(number):
    return Note(run="run", worker="g0-0", incarnation=1, kind=str(number))


def dump(text):
    return Note(run="run", worker="g0-0", incarnation=1, kind="dump", fields={"stacks": text})


class Line:
    """Replaces the uplink: returns a client, and counts the calls."""

    def __init__(self, client):
        self.client = client
        self.calls = 0

    async def connected(self):
        self.calls += 1
        return self.client


@pytest.fixture
async def connect(broker):
    opened = []

    async def connect():
        client = await nats.connect(
            broker.url,
            user_credentials=str(broker.credentials.weaver_creds),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            error_cb=_ignore,
        )
        opened.append(client)
        return client

    yield connect
    for client in opened:
        await client.close()


async def _ignore(error):
    pass


@pytest.fixture
async def received(connect):
    """Return the events that arrive, as they arrive."""
    events = asyncio.Queue()

    async def take(message):
        events.put_nowait(decode_event(message.data))

    client = await connect()
    await client.subscribe(subjects.event("run"), cb=take)
    await settle(client)
    return events


async def test_a_large_event_is_sent_apart_from_acks_and_exits(connect, posting):
    client = await connect()
    small = await client.subscribe(subjects.event("run"))
    large = await client.subscribe(subjects.bulk("run"))
    await settle(client)
    mail = posting(Publisher(Line(await connect()), "run", "g0-0", 1))
    room = MAX_REPORT_BYTES - len(encode(dump("")))
    for size in (room, room + 1):
        mail.event(dump("x" * size))
    assert len((await small.next_msg(DEADLINE_S)).data) == MAX_REPORT_BYTES
    assert len((await large.next_msg(DEADLINE_S)).data) == MAX_REPORT_BYTES + 1


@pytest.fixture
async def posting():
    """Return a function that lets a publisher send until the test ends."""
    tasks = []

    def start(mail):
        tasks.append(asyncio.create_task(mail.run()))
        return mail

    yield start
    await end_all(*tasks)


async def kill(broker):
    server = psutil.Process(broker.pid)
    os.kill(server.pid, signal.SIGKILL)
    await asyncio.to_thread(psutil.wait_procs, [server], DEADLINE_S)


def test_every_ack_and_every_exit_is_small_enough_for_the_reports():
    long = {"run": "r" * 64, "worker": "w" * 64, "incarnation": 2**53, "step": 2**53}
    ack = Ack(command="c" * 64, epoch=2**53, status="rejected", detail="\x01" * 2000, **long)
    ended = Exit(status=-9, expected=False, error="\x01" * 2000, **long)
    assert max(len(encode(ack)), len(encode(ended))) < MAX_REPORT_BYTES // 2


async def test_a_full_queue_drops_notes_and_never_the_hello_or_the_exit(connect, received, posting):
    mail = Publisher(Line(await connect()), "run", "g0-0", 1)
    mail.event(HELLO)
    mail.event(EXIT)
    for number in range(5000):
        mail.event(note(number))
    posting(mail)
    async with asyncio.timeout(DEADLINE_S):
        events = [await received.get() for _ in range(1002)]
        await mail.finish()
    assert received.empty()
    assert (events[0], events[-1]) == (HELLO, EXIT)
    assert [event.kind for event in events[1:-1]] == [str(number) for number in range(4000, 5000)]


async def test_a_message_to_an_absent_broker_is_not_taken_as_sent(
    connect, received, posting, broker
):
    line = Line(await connect())
    mail = Publisher(line, "run", "g0-0", 1)
    await kill(broker)
    await eventually(lambda: not line.client.is_connected)
    mail.event(EXIT)
    finishing = asyncio.create_task(mail.finish())
    posting(mail)
    await eventually(lambda: line.calls >= 2 or finishing.done())
    assert not finishing.done()
    await broker.start()
    async with asyncio.timeout(DEADLINE_S):
        await finishing
        assert await received.get() == EXIT


class Cut:
    """A client whose connection is cut, once, between its message and the confirmation."""

    def __init__(self, client, broker):
        self._client = client
        self._broker = broker
        self.sent = 0

    def __getattr__(self, name):
        return getattr(self._client, name)

    async def publish(self, *what):
        self.sent += 1
        if self.sent > 1:  # the first one is lost with the connection
            await self._client.publish(*what)

    async def flush(self, timeout):
        if self.sent == 1:
            before = self._client.stats["reconnects"]
            await kill(self._broker)
            await self._broker.start()
            await eventually(lambda: self._client.stats["reconnects"] > before)
            await eventually(lambda: self._client.is_connected)
        await self._client.flush(timeout)


async def test_a_message_lost_with_a_connection_is_not_taken_as_sent_when_the_next_answers(
    connect, received, posting, broker
):
    client = Cut(await connect(), broker)
    mail = posting(Publisher(Line(client), "run", "g0-0", 1))
    mail.event(EXIT)
    async with asyncio.timeout(DEADLINE_S):
        assert await received.get() == EXIT
        await mail.finish()
    assert client.sent == 2


class HeldUp:
    """A client through which nothing is stored before ``freed`` is set."""

    def __init__(self, client):
        self._client = client
        self.freed = asyncio.Event()
        self.calls = asyncio.Event()

    def __getattr__(self, name):
        return getattr(self._client, name)

    def jetstream(self):
        return self

    async def publish(self, subject, data, timeout=None, headers=None):
        if timeout is not None:
            self.calls.set()
            await self.freed.wait()
        await self._client.publish(subject, data, headers=headers)


class Announced(Line):
    mark = ""


async def test_the_end_of_a_worker_does_not_overtake_its_last_ack(connect, posting):
    order = asyncio.Queue()

    async def take(message):
        order.put_nowait(message.subject)

    everything = await connect()
    for subject in (subjects.event("run"), subjects.ack("run")):
        await everything.subscribe(subject, cb=take)
    await settle(everything)
    client = HeldUp(await connect())
    mail = posting(Publisher(Announced(client), "run", "g0-0", 1))
    await mail.ack(
        Ack(command="c1.1", run="run", worker="g0-0", incarnation=1, epoch=1, status="applied")
    )
    mail.event(note(1))
    mail.event(EXIT)
    await client.calls.wait()
    event, ack = subjects.event("run", "g0-0", 1), subjects.ack("run", "g0-0", 1)
    async with asyncio.timeout(DEADLINE_S):
        assert await order.get() == event  # the note
        client.freed.set()
        assert [await order.get(), await order.get()] == [ack, event]
        await mail.finish()


async def test_a_trainer_with_endless_notes_sends_no_more_than_the_weaver_takes(
    connect, monkeypatch
):
    now_ns = 0
    monkeypatch.setattr("time.monotonic_ns", lambda: now_ns)
    publisher = Publisher(Line(await connect()), "run", "g0-0", 1)
    for number in range(2000):
        publisher.event(note(number % 10))
    assert len(list(publisher._allowed())) == 1000
    publisher.event(note(0))
    assert not list(publisher._allowed())
    now_ns = 10**9
    assert len(list(publisher._allowed())) == 20
    publisher.event(EXIT)
    assert list(publisher._allowed())[-1] == EXIT
