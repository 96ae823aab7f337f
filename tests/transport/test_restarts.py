"""The broker is killed with -9 and comes back: nothing on file is lost, everyone is reconnected."""

import asyncio
import contextlib

import pytest

from tests.waiting import eventually, soon
from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport import connection, jetstream
from torchloom_core.wire import codec, subjects


@pytest.fixture
async def restart(broker, kill_broker, bus):
    async def restart():
        await kill_broker()
        await eventually(starts)

    async def starts():
        try:
            await broker.start()
        except BrokerError as error:
            # Its port may be that of an outgoing connection meanwhile.
            if "Address already in use" not in str(error):
                raise
            return False
        return True

    return restart


async def test_acks_and_keys_survive_the_kill_of_the_broker(
    bus, restart, connect_worker, arrivals, make
):
    worker = await connect_worker("g0-0")
    await bus.store({"plan.p1": b"before"})
    await restart()
    assert await bus.state.items("0") == {"plan.p1": b"before"}
    await worker.client.jetstream().publish(
        subjects.ack("run", "g0-0", 1), codec.encode(make.ack())
    )
    await arrivals.until(lambda a: a.messages)
    assert arrivals.messages == [make.ack()]


async def test_the_state_is_read_completely_although_the_servers_answers_overtake_it(
    bus, monkeypatch
):
    entries = {f"plan.p{number}": b"1" for number in range(5)}
    await bus.store({**entries, "plan.gone": b"1"})
    await bus.store({"plan.gone": None})
    client = bus._link.client
    process = client._process_msg

    async def late(sid, subject, *rest):
        if not subject.startswith(b"$KV."):
            return await process(sid, subject, *rest)
        asyncio.get_running_loop().call_later(
            0.1, lambda: asyncio.ensure_future(process(sid, subject, *rest))
        )

    monkeypatch.setattr(client, "_process_msg", late)
    assert await bus.state.items("0") == entries
    assert {key for key in await bus.state._keys() if key.startswith("0.")} == {
        f"0.{key}" for key in [*entries, "plan.gone"]
    }


async def test_telemetry_and_events_flow_again(bus, restart, connect_worker, arrivals, make):
    worker = await connect_worker("g0-0")
    await restart()
    # Messages published while the Weaver reconnects are lost, as telemetry may be.

    async def both_are_heard():
        await worker.client.publish(
            subjects.telemetry("run", "g0-0", 1), codec.encode_telemetry(make.telemetry())
        )
        await worker.client.publish(subjects.event("run", "g0-0", 1), codec.encode(make.hello()))
        return len({type(message) for message in arrivals.messages}) == 2

    await eventually(both_are_heard)


@pytest.mark.long
async def test_writes_begun_while_the_broker_is_away_land_once(
    bus, broker, kill_broker, monkeypatch
):
    monkeypatch.setattr(jetstream, "_ANSWERED_S", 0.5)
    await kill_broker()
    writes = [
        asyncio.create_task(bus.store({"plan.p1": b"1", "plan.p2": b"2"})),
        asyncio.create_task(bus.state.claim_epoch()),
    ]
    await asyncio.sleep(0)
    await broker.start()
    await asyncio.gather(*writes)
    assert await bus.state.items("0") == {"plan.p1": b"1", "plan.p2": b"2"}


async def test_an_ack_sent_while_the_weaver_reconnects_is_received(
    bus, restart, connect_worker, arrivals, make
):
    worker = await connect_worker("g0-0")
    await restart()
    put = None
    while put is None:
        with contextlib.suppress(Exception):
            put = await worker.client.jetstream(timeout=1).publish(
                subjects.ack("run", "g0-0", 1), codec.encode(make.ack())
            )
    await arrivals.until(lambda a: a.messages)


async def test_a_superseded_weaver_learns_it_over_a_restart(connect_bus, restart, arrivals):
    first, second = await connect_bus(arrivals), await connect_bus(arrivals)
    epochs = asyncio.Queue()
    epoch = await first.state.claim_epoch()
    await first.on_epoch(epochs.put_nowait)
    await restart()
    await second.state.claim_epoch()
    assert await soon(epochs.get()) == epoch + 1


async def test_a_graceful_stop_of_the_broker_is_survived_too(bus, broker):
    await broker.stop()
    await broker.start()
    await bus.store({"plan.p1": b"after"})
    assert await bus.state.items("0") == {"plan.p1": b"after"}


async def test_a_broker_that_stays_away_is_one_clear_line(bus, broker, kill_broker, monkeypatch):
    monkeypatch.setattr(connection, "RETRY_S", 0.2)
    monkeypatch.setattr(jetstream, "_ANSWERED_S", 0.2)
    await kill_broker()
    with pytest.raises(BrokerError) as caught:
        await bus.store({"plan.p1": b"1"})
    assert str(caught.value).startswith(
        f"{broker.url}: store the state: need an answer within 0.2 s, was "
    )


async def test_a_long_absence_of_the_broker_is_survived(bus, broker, kill_broker):
    await kill_broker()
    client = bus._link.client
    await eventually(lambda: not client._server_pool or client._server_pool[0].reconnects >= 6)
    assert not client.is_closed
    await broker.start()
    await bus.store({"plan.p1": b"after"})
