"""The client survives what nats-py's does not: a late answer, and a close at a bad moment."""

import asyncio

import nats.errors
import psutil
import pytest

from torchloom_core.nats_client import NatsClient


async def test_a_late_answer_to_a_flush_does_not_deafen_the_client(broker):
    client = NatsClient()
    await client.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    server = psutil.Process(broker.pid)
    server.suspend()
    async with asyncio.timeout(30):
        while server.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
    try:
        with pytest.raises(nats.errors.FlushTimeoutError):
            await client.flush(timeout=0.2)
    finally:
        server.resume()
    heard = asyncio.Event()

    async def hear(message):
        heard.set()

    await client.subscribe("tl.out.run.notice", cb=hear)
    await client.publish("tl.out.run.notice", b"")
    await asyncio.wait_for(heard.wait(), 30)
    await client.close()


async def test_a_client_that_reconnects_from_a_server_that_hangs_can_be_closed(broker):
    client = NatsClient()
    await client.connect(broker.url, user_credentials=str(broker.credentials.weaver_creds))
    server = psutil.Process(broker.pid)
    server.suspend()

    async def publish():
        while True:
            await client.publish("tl.out.run.notice", bytes(1_000_000))

    publishing = asyncio.create_task(publish())
    try:
        async with asyncio.timeout(30):
            sending = client._transport._io_writer.transport
            while not sending.get_write_buffer_size():  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
            await client._process_op_err(nats.errors.StaleConnectionError())
            await asyncio.sleep(0.1)  # the reconnect waits for the old connection to end
            await client.close()
    finally:
        server.resume()
        publishing.cancel()
        await asyncio.wait({publishing})
    assert client.is_closed
