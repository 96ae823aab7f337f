"""The broker is killed with -9 and comes back: nothing on file is lost, everyone is reconnected."""

import asyncio
import contextlib

import pytest

from torchloom_core import codec, subjects
from torchloom_core.bus import link
from torchloom_core.errors import BrokerError


@pytest.fixture
async def restart(broker, kill_broker, bus):
    async def restart():
        await kill_broker()
        await broker.start()

    return restart


async def test_commands_acks_and_keys_survive_the_kill_of_the_broker(
    bus, restart, connect_worker, arrivals, make
):
    await bus.add_worker("g0-0")
    worker = await connect_worker("g0-0")
    await bus.send(make.command())
    await bus.put("control", b"before")
    await restart()
    assert await bus.get("control") == b"before"
    message = await worker.pull()
    assert codec.decode_command(message.data).id == "c1"
    await message.ack_sync()
    await worker.client.jetstream().publish(subjects.ack("run", "g0-0"), codec.encode(make.ack()))
    await arrivals.until(lambda a: a.messages)
    assert arrivals.messages == [make.ack()]


async def test_telemetry_and_events_flow_again(bus, restart, connect_worker, arrivals, make):
    worker = await connect_worker("g0-0")
    await restart()
    # What is published while the Weaver reconnects is lost, as telemetry may be.
    async with asyncio.timeout(60):
        while len({type(message) for message in arrivals.messages}) < 2:
            await worker.client.publish(
                subjects.telemetry("run", "g0-0"), codec.encode_telemetry(make.telemetry())
            )
            await worker.client.publish(subjects.event("run", "g0-0"), codec.encode(make.hello()))
            await asyncio.sleep(0.05)


async def test_writes_begun_while_the_broker_is_away_land_once(bus, broker, kill_broker, make):
    await kill_broker()
    writes = [
        asyncio.create_task(bus.send(make.command())),
        asyncio.create_task(bus.put("control", b"1")),
        asyncio.create_task(bus.put("control", b"2")),
        asyncio.create_task(bus.claim_epoch()),
    ]
    await asyncio.sleep(0)
    await broker.start()
    await asyncio.gather(*writes)
    stream = await bus._store._js.stream_info("TL_CMD_run")
    assert stream.state.messages == 1
    assert await bus.get("control") == b"2"


async def test_an_ack_sent_while_the_weaver_reconnects_is_received(
    bus, restart, connect_worker, arrivals, make
):
    worker = await connect_worker("g0-0")
    await restart()
    put = None
    while put is None:
        with contextlib.suppress(Exception):
            put = await worker.client.jetstream(timeout=1).publish(
                subjects.ack("run", "g0-0"), codec.encode(make.ack())
            )
    await arrivals.until(lambda a: a.messages)


async def test_a_superseded_weaver_learns_it_over_a_restart(connect_bus, restart, arrivals):
    first, second = await connect_bus(arrivals), await connect_bus(arrivals)
    told = asyncio.Queue()
    epoch = await first.claim_epoch()
    await first.on_epoch(told.put_nowait)
    await restart()
    await second.claim_epoch()
    assert await asyncio.wait_for(told.get(), 60) == epoch + 1


async def test_a_graceful_stop_of_the_broker_is_survived_too(bus, broker):
    await broker.stop()
    await broker.start()
    await bus.put("control", b"after")
    assert await bus.get("control") == b"after"


async def test_a_broker_that_stays_away_is_one_clear_line(
    bus, broker, kill_broker, make, monkeypatch
):
    monkeypatch.setattr(link, "RETRY_S", 0.2)
    await kill_broker()
    with pytest.raises(BrokerError) as caught:
        await bus.send(make.command())
    assert str(caught.value).startswith(
        f"{broker.url}: send command c1: need an answer within 0.2 s, was "
    )


async def test_what_is_told_while_the_broker_is_away_is_counted(bus, kill_broker, make):
    await kill_broker()
    async with asyncio.timeout(60):
        while bus.is_connected:  # noqa: ASYNC110  (the client's own state)
            await asyncio.sleep(0.01)
    bus.tell("notice", make.hello())
    await bus._outbox.join()
    assert bus.untold == 1


async def test_a_long_absence_of_the_broker_is_survived(bus, broker, kill_broker):
    await kill_broker()
    client = bus._link.client
    async with asyncio.timeout(60):
        while client._server_pool and client._server_pool[0].reconnects < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert not client.is_closed
    await broker.start()
    await bus.put("control", b"after")
