"""A server without space for more is waited for, and does not end the Weaver."""

import asyncio
import contextlib

import nats
import pytest
from nats.js.api import StreamConfig

from tests.nats_servers import nats_server
from tests.waiting import eventually, soon
from torchloom_core.floor.errors import RefusedByBrokerError
from torchloom_core.live.transport import NatsBus, connection
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.integration
ROOM = 4 << 20


@pytest.fixture
def limited(tmp_path, monkeypatch, request):
    """The URL of a server whose account has a limit."""
    monkeypatch.setattr(connection, "_FULL_WAIT_S", 0.05)
    account = f"jetstream {{ {request.param} }}, users: [{{user: w, password: p}}]"
    with nats_server(tmp_path, f"accounts {{ RUN {{ {account} }} }}\n") as (_, address):
        yield f"nats://w:p@{address}"


@pytest.fixture
async def user(limited):
    client = await nats.connect(limited)
    yield client.jetstream()
    await client.close()


@pytest.mark.parametrize("limited", [f"max_file: {ROOM}"], indirect=True)
async def test_state_is_stored_once_there_is_space_again(limited, user, caplog):
    bus = await NatsBus.connect(limited, "run")
    await user.add_stream(StreamConfig(name="OTHER", subjects=["other"]))
    await fill(user)
    writing = asyncio.create_task(bus.store({"plan.p1": b"1" * (1 << 16)}))
    await eventually(lambda: bus.state.waits_for_space == "store the state")
    await asyncio.sleep(0.2)
    assert not writing.done()
    await user.delete_stream("OTHER")
    await soon(writing)
    assert bus.state.waits_for_space == ""
    lines = [record.getMessage() for record in caplog.records]
    assert sum("store the state: waits until the server has space" in line for line in lines) == 1
    assert sum("there is space again" in line for line in lines) == 1
    await bus.close()


@pytest.mark.parametrize("limited", [f"max_file: {ROOM}, max_streams: 3"], indirect=True)
async def test_a_weaver_waits_at_its_start_until_the_account_has_space(limited, user):
    await user.add_stream(StreamConfig(name="OTHER", subjects=["other"]))
    connecting = asyncio.create_task(NatsBus.connect(limited, "run"))
    await asyncio.sleep(0.3)
    assert not connecting.done()
    await user.delete_stream("OTHER")
    await (await soon(connecting)).close()


@pytest.mark.parametrize("limited", [f"max_file: {ROOM}"], indirect=True)
async def test_what_no_space_helps_is_still_refused(limited):
    bus = await NatsBus.connect(limited, "run")
    with pytest.raises(RefusedByBrokerError):
        await bus.store({"plan.p1": b"1" * (MAX_MESSAGE_BYTES + 1)})
    await bus.close()


async def fill(user):
    with contextlib.suppress(nats.js.errors.APIError):
        while True:
            await user.publish("other", b"x" * (1 << 16))
