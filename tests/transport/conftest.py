import asyncio
import os
import signal
import time

import msgspec
import nats
import pytest
from nats.aio.client import RawCredentials

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.messages import Hello, Note, Telemetry
from torchloom_core.wire.operations import Pause


class Arrivals:
    """The messages that a bus passed on, and a way to wait for more."""

    def __init__(self):
        self.messages = []
        self.malformed = []
        self._changed = asyncio.Event()

    def receive(self, message, ts_recv_ns, data):
        assert ts_recv_ns > 0
        self.messages.append(message)
        self._changed.set()
        return True

    def reject(self, subject, reason):
        self.malformed.append((subject, reason))
        self._changed.set()

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self):
                self._changed.clear()
                await self._changed.wait()


class Member:
    """A bare client with the credentials of a worker, a person or a joiner."""

    def __init__(self, name, incarnation=0):
        self.name = name
        self.incarnation = incarnation
        self.client = None
        self.denials = []

    async def note(self, error):
        self.denials.append(str(error))

    async def is_denied(self, act):
        """Return whether the server refused ``act``, reported before its next PONG."""
        self.denials.clear()
        await act
        await settle(self.client)
        return any("permissions violation" in denial for denial in self.denials)

    async def take_commands(self):
        """Receive the commands of the worker that this is, for :meth:`command`."""
        subject = subjects.command("run", self.name, self.incarnation)
        self._commands = await self.client.subscribe(subject)
        await settle(self.client)

    async def command(self):
        """Return the next command."""
        return decode_command((await self._commands.next_msg(DEADLINE_S)).data)


@pytest.fixture
def arrivals():
    return Arrivals()


@pytest.fixture
async def connect_bus(broker):
    opened = []

    async def connect(arrivals=None):
        bus = await NatsBus.connect(broker.url, "run", broker.credentials.weaver_creds)
        opened.append(bus)
        if arrivals is not None:
            await bus.open(arrivals.receive, arrivals.reject)
        return bus

    yield connect
    for bus in opened:
        await bus.close()


@pytest.fixture
async def bus(connect_bus, arrivals):
    return await connect_bus(arrivals)


@pytest.fixture
async def connect(broker):
    """Return a function that connects with the text of credentials."""
    opened = []

    async def connect(name, creds, inbox_prefix="_INBOX", incarnation=0):
        member = Member(name, incarnation)
        member.client = await nats.connect(
            broker.url,
            user_credentials=RawCredentials(creds),
            inbox_prefix=inbox_prefix,
            error_cb=member.note,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
        )
        opened.append(member)
        return member

    yield connect
    for member in opened:
        await member.client.close()


@pytest.fixture
def connect_worker(broker, connect):
    async def connect_worker(name, incarnation=1):
        seed = nats_jwt.new_seed("user")
        jwt = broker.credentials.worker_jwt(name, incarnation, nats_jwt.public_key(seed))
        inbox = subjects.inbox_prefix("run", name, incarnation)
        return await connect(name, nats_jwt.creds_text(jwt, seed), inbox, incarnation)

    return connect_worker


@pytest.fixture
def connect_person(broker, connect):
    async def connect_person(name, role="operator"):
        seed = nats_jwt.new_seed("user")
        return await connect(name, broker.credentials.person_creds_text(name, seed, role))

    return connect_person


@pytest.fixture
def connect_joiner(broker, connect):
    async def connect_joiner():
        creds = broker.credentials.join_creds_text()
        return await connect("joiner", creds, subjects.join_inbox("run"))

    return connect_joiner


@pytest.fixture
async def weaver_client(broker):
    """A bare client with the Weaver's rights."""
    client = await nats.connect(
        broker.url,
        user_credentials=str(broker.credentials.weaver_creds),
        inbox_prefix="_INBOX_WEAVER_run",
    )
    yield client
    await client.close()


@pytest.fixture
def kill_broker(broker):
    async def kill():
        os.kill(broker.pid, signal.SIGKILL)
        await eventually(lambda: not broker.is_alive())

    return kill


@pytest.fixture
def make():
    """Messages of worker g0-0, fields changed at will."""

    class Make:
        @staticmethod
        def telemetry(**changes):
            batch = Telemetry(
                run="run",
                worker="g0-0",
                incarnation=1,
                seq=0,
                state="training",
                step=3,
                progress_age_s=0.1,
            )
            return msgspec.structs.replace(batch, **changes)

        @staticmethod
        def hello(**changes):
            hello = Hello(run="run", worker="g0-0", incarnation=1, group="g0", rank=0, node="n0")
            return msgspec.structs.replace(hello, **changes)

        @staticmethod
        def note(**changes):
            note = Note(run="run", worker="g0-0", incarnation=1, kind="hang")
            return msgspec.structs.replace(note, **changes)

        @staticmethod
        def ack(**changes):
            ack = Ack(
                command="c1", run="run", worker="g0-0", incarnation=1, epoch=1, status="applied"
            )
            return msgspec.structs.replace(ack, **changes)

        @staticmethod
        def command(**changes):
            now_ns = time.time_ns()
            command = Command(
                id="c1",
                run="run",
                worker="g0-0",
                incarnation=1,
                epoch=1,
                issued_ns=now_ns,
                deadline_ns=now_ns + 60_000_000_000,
                do=Pause(),
            )
            return msgspec.structs.replace(command, **changes)

    return Make
