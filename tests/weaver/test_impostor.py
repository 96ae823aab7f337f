"""An earlier holder of a worker's name, with its credentials, cannot act under it."""

import asyncio
import contextlib

import msgspec
import nats
import nats.errors
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.transport.conftest import Member
from tests.waiting import News, eventually
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire import codec, subjects
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.messages import Exit, Hello, JoinReply, JoinRequest, Note, Telemetry
from torchloom_core.wire.status import Status

pytestmark = pytest.mark.integration

WORKER = "g0-0"
STALE_S = 2.0
_AGAIN_S = 0.3
"""A connection that asks more often is taken for a flood."""


class Worker(Member):
    """One incarnation of the worker, with credentials from its enrolment."""

    def __init__(self, incarnation):
        super().__init__(WORKER, incarnation)
        self._identity = {"run": "run", "worker": WORKER, "incarnation": incarnation}
        self.own = ("run", WORKER, incarnation)
        self.inbox = subjects.inbox_prefix(*self.own)
        self.commands = subjects.command(*self.own)
        self.seed = nats_jwt.new_seed("user")

    async def enrol(self, joiner):
        """Request credentials until granted: the name may still be in use."""
        key = nats_jwt.public_key(self.seed)
        request = codec.encode(JoinRequest(**self._identity, public_key=key))

        async def jwt():
            answer = await joiner.request(subjects.join("run"), request, timeout=DEADLINE_S)
            await asyncio.sleep(_AGAIN_S)
            return codec.decode_json(JoinReply, answer.data, "join reply").jwt

        return nats_jwt.creds_text(await eventually(jwt), self.seed)

    async def connect(self, url, creds):
        self.client = await nats.connect(
            url,
            user_credentials=RawCredentials(creds),
            inbox_prefix=self.inbox,
            error_cb=self.note,
        )

    async def send(self, message, as_incarnation=None):
        """Send a message on its own subject, or on that of the given incarnation."""
        subject, encode = {
            Telemetry: (subjects.telemetry, codec.encode_telemetry),
            Ack: (subjects.ack, codec.encode),
        }.get(type(message), (subjects.event, codec.encode))
        own = self.own if as_incarnation is None else as_incarnation.own
        await self.client.publish(subject(*own), encode(message))

    def hello(self):
        return Hello(**self._identity, group="g0", rank=0, node="n0", state="training")

    def exit(self):
        return Exit(**self._identity, status=-9, expected=False)

    def hang(self):
        return Note(**self._identity, kind="hang", ts_ns=1)

    def telemetry(self, step=1):
        return Telemetry(**self._identity, seq=0, state="training", step=step, progress_age_s=0.0)

    def ack(self, command, status="applied"):
        return Ack(**self._identity, command=command.id, epoch=command.epoch, status=status)

    async def beat(self):
        while True:
            await self.send(self.telemetry())
            await asyncio.sleep(STALE_S / 20)


class Person(News):
    """Sends requests to the Weaver, and stores what it publishes."""

    def __init__(self, client):
        self._client = client
        self.published = []
        super().__init__()

    async def listen(self):
        async def take(message):
            kind = message.subject.removeprefix(subjects.out("run", ""))
            self.published.append((kind, msgspec.json.decode(message.data)))
            self._news.set()

        await self._client.subscribe(subjects.out("run"), cb=take)
        await settle(self._client)

    async def ask(self, verb, body=b""):
        subject = subjects.control("run", "operator", verb)
        return (await self._client.request(subject, body, timeout=DEADLINE_S)).data

    async def status(self):
        return msgspec.json.decode(await self.ask("status"), type=Status)

    def all_published(self, kind):
        return [body for each, body in self.published if each == kind]

    async def until_status(self, condition):
        async def as_wanted():
            status = await self.status()
            return status if condition(status) else None

        return await eventually(as_wanted)


@pytest.fixture
async def scene(start_weaver, tmp_path):
    """A Weaver's URL, a person, a joiner."""
    url = await start_weaver(f"tick_s = 0.1\nstale_after_s = {STALE_S}\n")
    credentials = Credentials.find(tmp_path, "run")
    person = await nats.connect(url, user_credentials=str(credentials.operator_creds))
    creds, inbox = credentials.join_creds_text(), subjects.join_inbox("run")
    joiner = await nats.connect(url, user_credentials=RawCredentials(creds), inbox_prefix=inbox)
    yield url, Person(person), joiner
    for client in (person, joiner):
        await client.close()


@pytest.mark.long
@pytest.mark.parametrize(("earlier", "present"), [(1000, 2000), (2000, 1000)])
async def test_an_earlier_holder_of_a_name_does_not_affect_its_present_incarnation(
    scene, earlier, present
):
    url, person, joiner = scene
    await person.listen()
    impostor, real = Worker(earlier), Worker(present)
    for number, worker in enumerate((impostor, real)):
        await worker.connect(url, await worker.enrol(joiner))
        await worker.take_commands()
        await worker.send(worker.hello())
        await person.until(lambda number=number: len(person.all_published("notice")) > number)
    beating = asyncio.create_task(real.beat())

    dump = b'{"action": {"kind": "dump", "worker": "g0-0"}}'
    assert msgspec.json.decode(await person.ask("propose", dump))["ok"]
    command = await real.command()

    # The server refuses to subscribe or publish as the present incarnation.
    for subject in (f"{real.inbox}.>", real.commands):
        assert await impostor.is_denied(impostor.client.subscribe(subject))
    for forged in (real.exit(), real.telemetry(99), real.ack(command, "failed"), real.hang()):
        assert await impostor.is_denied(impostor.send(forged, as_incarnation=real))
    # The Weaver or the kernel ignores these, as its own incarnation.
    for late in (impostor.hello(), impostor.exit(), impostor.hang(), impostor.telemetry(99)):
        await impostor.send(late)
    await impostor.send(impostor.ack(command, "failed"))
    await impostor.send(impostor.hello())
    for forged in (real.telemetry(99), real.exit(), real.ack(command, "failed"), real.hello()):
        await impostor.send(forged)
    status = await person.until_status(
        lambda status: status.malformed == 4 and status.workers[0].step >= 0
    )
    (row,) = status.workers
    assert (row.incarnation, row.state, row.step) == (present, "training", 1)
    assert [flight.status for flight in status.flights] == ["issued"]
    with pytest.raises(TimeoutError):
        await impostor._commands.next_msg(0.01)

    await real.send(real.ack(command))
    await person.until(lambda: person.all_published("outcome"))
    (outcome,) = person.all_published("outcome")
    assert outcome["result"] == "done"
    assert [notice["kind"] for notice in person.all_published("notice")] == ["hello", "hello"]
    beating.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await beating
    for worker in (impostor, real):
        await worker.client.close()


async def test_an_incarnation_that_never_started_cannot_take_the_name_from_the_next(scene):
    url, person, joiner = scene
    await person.listen()
    impostor, real = Worker(2000), Worker(1000)
    for worker in (impostor, real):
        await worker.connect(url, await worker.enrol(joiner))
    await real.send(real.hello())
    await person.until(lambda: person.all_published("notice"))
    await impostor.send(impostor.hello())
    await settle(impostor.client)
    await real.send(real.telemetry(5))
    status = await person.until_status(lambda status: status.workers[0].step == 5)
    assert [row.incarnation for row in status.workers] == [real.incarnation]
    for worker in (impostor, real):
        await worker.client.close()
