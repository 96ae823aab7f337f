"""The publisher of the ingest benchmark: sends what was encoded beforehand, as fast as it is taken.

``python ingest_publisher.py {bare,weaver} URL CREDS WORKERS ROUNDS SAMPLES``
"""

import asyncio
import re
import sys

import fleet
import nats
import numpy as np
from ingest_subscriber import PROGRESS
from nats.aio.client import Client
from nats.aio.msg import Msg

from torchloom_core.wire import subjects
from torchloom_core.wire.codec import encode, encode_telemetry

_LOOK_S = 0.1
_AHEAD = 4000
"""Messages on the way at once: enough to keep the subscriber busy, less than the server cuts."""


async def introduce(client: Client, workers: list[str]) -> None:
    """Say hello for every worker and wait until the Weaver has registered them."""
    admitted = asyncio.Semaphore(0)

    async def take(msg: Msg) -> None:
        if b'"kind":"hello"' in msg.data:
            admitted.release()

    await client.subscribe(subjects.out(fleet.RUN, "notice"), cb=take)
    await client.flush()
    for worker in workers:
        subject = subjects.event(fleet.RUN, worker, fleet.INCARNATION)
        await client.publish(subject, encode(fleet.hello(worker)))
    for _ in workers:
        await admitted.acquire()


async def publish(client: Client, workers: list[str], rounds: int, samples: int) -> None:
    """Send ``rounds`` batches of every worker; those of the last round say so."""
    rng = np.random.default_rng(0)
    ordinary, last = (
        [
            (
                subjects.telemetry(fleet.RUN, worker, fleet.INCARNATION),
                encode_telemetry(fleet.batch(worker, fleet.values(rng, samples, number))),
            )
            for worker in workers
        ]
        for number in (0, rounds - 1)
    )
    taken = 0
    more = asyncio.Event()

    async def hear(msg: Msg) -> None:
        nonlocal taken
        taken = int(re.findall(rb"\d+", msg.data)[-1])
        more.set()

    await client.subscribe(subjects.out(fleet.RUN, PROGRESS), cb=hear)
    await client.flush()
    sent = 0
    for number in range(rounds):
        for subject, data in last if number == rounds - 1 else ordinary:
            while sent - taken >= _AHEAD:
                more.clear()
                await more.wait()
            await client.publish(subject, data)
            sent += 1
    await client.flush()


async def main() -> None:
    """Introduce the workers where there is a Weaver, then send."""
    side, url, creds, *sizes = sys.argv[1:]
    count, rounds, samples = map(int, sizes)
    workers = fleet.names(count)
    client = await nats.connect(url, user_credentials=creds)
    if side == "weaver":
        await introduce(client, workers)
    await publish(client, workers, rounds, samples)
    await client.close()


if __name__ == "__main__":
    asyncio.run(main())
