"""A sidecar passes on what its own incarnation is commanded, and nothing else on its subject."""

import time

import msgspec
import pytest

from torchloom_core.wire.codec import encode
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import JoinReply
from torchloom_core.wire.operations import Checkpoint
from torchloom_threadlet.sidecar.commands import Commands

NOW_NS = time.time_ns()
COMMAND = Command(
    id="c1", run="run", worker="g0-0", incarnation=1, epoch=1, issued_ns=NOW_NS,
    deadline_ns=NOW_NS + 600 * 10**9, do=Checkpoint(),
)  # fmt: skip


class Message:
    def __init__(self, data):
        self.data = data


@pytest.fixture
def taken():
    return []


@pytest.fixture
def take(taken):
    async def on_command(command):
        taken.append(command)

    async def on_unreadable(ack):
        taken.append((ack.command, ack.status))

    commands = Commands("run", "g0-0", 1, on_command, on_unreadable)
    return lambda data: commands.take(Message(data))


def changed(**fields):
    return encode(msgspec.structs.replace(COMMAND, **fields))


async def test_a_command_is_passed_on_as_often_as_it_comes(take, taken):
    for _ in range(2):
        await take(encode(COMMAND))
    assert taken == [COMMAND, COMMAND]


async def test_a_command_that_cannot_be_read_is_rejected(take, taken):
    plain = msgspec.to_builtins(COMMAND) | {"do": {"verb": "of a later version"}}
    await take(msgspec.json.encode(plain))
    await take(msgspec.json.encode(plain | {"worker": "g1-0"}))
    assert taken == [("c1", "rejected")]


@pytest.mark.parametrize(
    "data",
    [
        changed(run="other"),
        changed(worker="g1-0"),
        changed(incarnation=2),
        b"",
        b"\xff",
        b"[" * 100_000,
        b'{"stream": "TL_REPORT_run", "seq": 1}',  # the server's answer to another's ack
        encode(JoinReply(error=changed().decode())),
    ],
)
async def test_what_is_no_command_to_this_incarnation_is_dropped(take, taken, data):
    await take(data)
    assert not taken
