"""A worker answers the Weaver's roll call, and nothing else on its subject, with a hello.

Nor does it take another's answer for a command.
"""

import asyncio

import pytest

from tests.settled import settle
from tests.waiting import News, soon
from torchloom_core.floor.errors import MessageError
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import encode
from torchloom_core.wire.messages import JoinReply, JoinRequest, RollCall
from torchloom_threadlet.sidecar.commands import Commands
from torchloom_threadlet.sidecar.roll_calls import RollCalls

MINE = "g0-0"
OTHER = "g1-0"
ROLL = subjects.roll_call("run")


class Member(News):
    """A worker that receives roll calls, and counts its hellos."""

    def __init__(self, every_s=0.0):
        self.hellos = 0
        self.messages = []
        super().__init__()
        self.roll = RollCalls("run", MINE, self.say, every_s)

    def say(self):
        self.hellos += 1
        self._news.set()

    async def subscribe(self, client):
        async def take(message):
            self.messages.append(message)
            await self.roll.take(message)
            self._news.set()

        await client.subscribe(ROLL, cb=take)
        await settle(client)


@pytest.fixture
async def member(bus, connect_worker):
    member = Member()
    await member.subscribe((await connect_worker(MINE)).client)
    return member


async def test_a_roll_call_of_the_weaver_is_answered(member, bus):
    await bus.roll_call(4)
    await member.until(lambda: member.hellos == 1)
    await bus.roll_call(4, [OTHER])
    await bus.roll_call(4, [OTHER, MINE])
    await member.until(lambda: len(member.messages) == 3)
    await member.until(lambda: member.hellos == 2)


async def test_an_answer_of_the_servers_is_no_roll_call(member, bus, connect_worker, make):
    attacker = (await connect_worker(OTHER)).client
    ack = encode(make.ack(worker=OTHER))
    await attacker.publish(subjects.ack("run", OTHER, 1), ack, reply=ROLL)
    await attacker.publish(subjects.event("run", OTHER, 1), encode(make.hello()), reply=ROLL)
    await member.until(lambda: len(member.messages) == 2)  # PubAcks
    assert member.hellos == 0
    await bus.roll_call(4)
    await member.until(lambda: member.hellos == 1)


async def test_an_answer_to_a_joiner_is_no_roll_call(member, bus, connect_joiner):
    async def refuse(request):
        return JoinReply(error='{"type": "roll_call", "run": "run", "epoch": 9}')

    await bus.serve_join(refuse)
    joiner = await connect_joiner()
    request = JoinRequest(run="run", worker="g7-0", incarnation=1, public_key="U")
    for body in (encode(request), b"", b'{"type": "roll_call", "run": "run", "epoch": 9}'):
        await joiner.client.publish(subjects.join("run"), body, reply=ROLL)
    await member.until(lambda: len(member.messages) == 3)
    assert member.hellos == 0


async def test_an_answer_of_the_servers_is_no_command(bus, connect_worker, make):
    taken = asyncio.Queue()
    mine, attacker = await connect_worker(MINE), (await connect_worker(OTHER)).client
    await Commands("run", MINE, 1, taken.put, taken.put).subscribe(mine.client)
    await mine.take_commands()  # the same once more
    aim, ack = subjects.command("run", MINE, 1), encode(make.ack(worker=OTHER))
    await attacker.publish(subjects.ack("run", OTHER, 1), ack, reply=aim)
    await attacker.publish(subjects.event("run", OTHER, 1), encode(make.command()), reply=aim)
    for _ in range(2):
        with pytest.raises(MessageError):  # a PubAck
            await mine.command()
    await bus.send([make.command()])
    assert await soon(taken.get()) == await mine.command()
    assert taken.empty()


class Message:
    def __init__(self, data):
        self.data = data


async def takes(roll, call):
    await roll.take(Message(call if isinstance(call, bytes) else encode(call)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_another_runs_call_and_garbage_are_not_answered_and_a_lower_epoch_is():
    member = Member(every_s=0.0)
    member.roll.record_epoch(5)
    garbage = (b"", b"\xff", b"{}", b"[" * 100_000, b'{"type":"roll_call","run":"run"}')
    others = RollCall(run="other", epoch=9)
    named = RollCall(run="run", epoch=6, workers=(OTHER,))
    for call in (*garbage, others, named):
        await takes(member.roll, call)
    assert member.hellos == 0
    await takes(member.roll, RollCall(run="run", epoch=4))  # the hello has the epoch
    await member.until(lambda: member.hellos == 1)
    assert member.roll.epoch == 6


async def test_of_many_calls_the_first_is_answered_and_the_last_at_the_windows_end():
    member = Member(every_s=1.0)
    loop = asyncio.get_running_loop()
    call = Message(encode(RollCall(run="run", epoch=1)))
    await member.roll.take(call)
    await member.until(lambda: member.hellos == 1)
    answered_s = loop.time()
    for _ in range(1000):
        await member.roll.take(call)
    assert member.hellos == 1
    await member.until(lambda: member.hellos == 2)
    assert loop.time() - answered_s > 0.9
    assert member.roll._waiting is None
