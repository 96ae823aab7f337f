"""The epoch: one Weaver at a time, for any value of its key."""

import asyncio
import logging
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from tests.waiting import eventually, soon
from torchloom_core.live.transport import NatsBus, state_bucket


class Cable:
    """A way to the broker that can be pulled out."""

    def __init__(self, url):
        self._to = urlsplit(url)
        self._ends = set()

    async def plug_in(self, port=0):
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"

    async def pull_out(self):
        self._server.close()
        for writer in self._ends:
            writer.close()
        self._ends.clear()

    async def _carry(self, reader, writer):
        there = await asyncio.open_connection(self._to.hostname, self._to.port)
        self._ends |= {writer, there[1]}
        await asyncio.gather(_pour(reader, there[1]), _pour(there[0], writer))


async def _pour(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def cable(broker):
    cable = Cable(broker.url)
    await cable.plug_in()
    yield cable
    await cable.pull_out()


async def test_an_epoch_claimed_while_a_weaver_is_disconnected_ends_it_when_it_is_back(
    broker, cable, connect_bus
):
    first = await NatsBus.connect(cable.url, "run", broker.credentials.weaver_creds)
    epochs = asyncio.Queue()
    epoch = await first.state.claim_epoch()
    await first.on_epoch(epochs.put_nowait)
    await cable.pull_out()
    await eventually(lambda: not first.is_connected)
    second = await connect_bus()
    assert await second.state.claim_epoch() == epoch + 1
    assert epochs.empty()
    await cable.plug_in(cable.port)
    assert await soon(epochs.get()) == epoch + 1
    await first.close()


async def test_a_claim_that_arrives_before_the_bucket_has_it_is_not_missed(
    connect_bus, monkeypatch
):
    first, second = await connect_bus(), await connect_bus()
    epochs = asyncio.Queue()
    epoch = await first.state.claim_epoch()
    await first.on_epoch(epochs.put_nowait)
    fresh, stale = first.state.newest_epoch, [epoch]

    async def late():
        return stale.pop() if stale else await fresh()

    monkeypatch.setattr(first.state, "newest_epoch", late)
    await second.state.claim_epoch()
    assert await soon(epochs.get()) == epoch + 1


@pytest.mark.parametrize("garbage", [b"soon", b"-1", b"0", b"1_0", b"9" * 18, b"\xff" * 999])
async def test_a_weaver_takes_an_epoch_that_is_none_for_a_lost_one(bus, garbage, caplog):
    epoch = await bus.state.claim_epoch()
    await bus.state._bucket.put("epoch", garbage)
    again = await bus.state.claim_epoch(above=epoch)
    assert again > epoch
    assert await bus.state.claim_epoch() == again + 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("key epoch: need an epoch, was b'")
    assert len(line) < 200


async def test_an_epoch_is_above_every_one_on_record(bus):
    await bus.state._bucket.put("epoch", b"7")
    assert await bus.state.claim_epoch(above=9) == 10
    assert await bus.state.claim_epoch(above=9) == 11


async def test_a_weaver_ignores_an_invalid_epoch(connect_bus, caplog, logged):
    caplog.set_level(logging.WARNING)
    first, second = await connect_bus(), await connect_bus()
    epochs = asyncio.Queue()
    epoch = await first.state.claim_epoch()
    await first.on_epoch(epochs.put_nowait)
    await first.state._bucket.put("epoch", b"soon")
    await logged.eventually(bool)
    assert epochs.empty()
    newest = await second.state.claim_epoch(above=epoch)
    assert await soon(epochs.get()) == newest


async def test_the_first_epoch_after_a_lost_state_is_above_every_one_of_it(bus, monkeypatch):
    now_s = 1_800_000_000.0
    monkeypatch.setattr(state_bucket, "time", SimpleNamespace(time=lambda: now_s))
    lost = [await bus.state.claim_epoch() for _ in range(5)]
    await bus._streams.context.purge_stream("KV_TL_run")
    now_s += len(lost)  # a Weaver takes longer than a second to come and go
    assert await bus.state.claim_epoch() > max(lost)
