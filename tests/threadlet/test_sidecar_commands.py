"""A command stays with the broker until its final ack is stored, even if a sidecar dies."""

import asyncio
import contextlib
import gc
import time

import nats
import pytest
from nats.aio.msg import Msg

from tests.waiting import eventually, soon
from torchloom_core.live.transport import NatsBus
from torchloom_core.wire import subjects
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.operations import Checkpoint
from torchloom_threadlet.sidecar.commands import Commands

NOW_NS = time.time_ns()
COMMAND = Command(
    id="c1", run="run", worker="g0-0", incarnation=1, epoch=1, issued_ns=NOW_NS,
    deadline_ns=NOW_NS + 600 * 10**9, do=Checkpoint(),
)  # fmt: skip
APPLIED = Ack(command="c1", run="run", worker="g0-0", incarnation=1, epoch=1, status="applied")


@pytest.fixture
async def bus(broker):
    bus = await NatsBus.connect(broker.url, "run", broker.credentials.weaver_creds)
    await bus.add_workers([("g0-0", 1)])
    yield bus
    await bus.close()


class Sidecar:
    """The part of a sidecar that pulls commands, on a connection of its own."""

    def __init__(self, client):
        self.client = client
        self.pulled, self.rejected = asyncio.Queue(), asyncio.Queue()
        self.orders = Commands("run", "g0-0", 1, self.pulled.put, self.rejected.put)
        self._pulling = asyncio.create_task(self.orders.pull(client))

    @classmethod
    async def start(cls, broker):
        creds = str(broker.credentials.weaver_creds)
        return cls(await nats.connect(broker.url, user_credentials=creds))

    async def next(self):
        return await soon(self.pulled.get())

    async def die(self):
        """End like a killed process: nothing more is sent, the connection is cut."""
        self.client._transport._io_writer.transport.abort()
        self._pulling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pulling
        await self.client.close()


async def consumer(client):
    return await client.jetstream().consumer_info(subjects.command_stream("run"), "g0-0_1")


async def no_command_is_open(client):
    """Wait until the broker has the acknowledgement of every command."""

    async def none_is_open():
        return not (await consumer(client)).num_ack_pending

    await eventually(none_is_open)


@pytest.mark.long
async def test_a_command_is_delivered_again_until_its_final_ack_is_stored(bus, broker):
    await bus.send([COMMAND])
    for _ in range(2):  # killed between the pull and the delivery to the trainer
        killed = await Sidecar.start(broker)
        assert await killed.next() == COMMAND
        await killed.die()
    sidecar = await Sidecar.start(broker)
    assert await sidecar.next() == COMMAND
    await sidecar.orders.settled(APPLIED)
    await no_command_is_open(sidecar.client)
    assert sidecar.pulled.empty()
    await sidecar.die()


async def test_a_new_sidecar_does_not_wait_for_the_commands_a_killed_one_pulled(bus, broker):
    client = await nats.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    waits_s = (await consumer(client)).config.backoff
    await client.close()
    assert waits_s[0] <= 1.0
    assert waits_s == sorted(waits_s)
    assert waits_s[-1] >= 60.0  # the command of a hung trainer is not redelivered all the time


@pytest.mark.long
async def test_one_copy_of_a_repeatedly_delivered_command_is_stored(bus, broker):
    sidecar = await Sidecar.start(broker)
    await bus.send([COMMAND])
    for _ in range(3):
        assert await sidecar.next() == COMMAND
    subject = subjects.command("run", "g0-0", 1)
    gc.collect()
    # Not isinstance: some objects of torch warn when their class is read.
    stored = [m for m in gc.get_objects() if type(m) is Msg and m.subject == subject]
    assert len(stored) < 3  # one, and perhaps the next one that has just arrived
    await sidecar.orders.settled(APPLIED)
    await no_command_is_open(sidecar.client)
    await sidecar.die()
