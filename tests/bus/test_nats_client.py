"""A flush that was given up does not end the connection when its answer comes after all."""

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
