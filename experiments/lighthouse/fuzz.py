"""Send malformed messages, while two groups continue to request quorums."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from experiments.lighthouse.calls import Calls
from experiments.lighthouse.fuzzed import messages
from experiments.lighthouse.groups import Arm, Lighthouse

ARM = Arm("torchLoom", active=True)
_AT_ONCE = 500
_MEMBERS = ("a:1", "b:1")


@dataclass(frozen=True)
class Fuzzed:
    """The results; ``quorums`` were formed meanwhile, each of both members."""

    sent: int
    quorums: int
    harmed: int
    alive: bool
    rss_mb: float
    log_lines: int


def play(folder: Path, count: int, seed: int, show: Callable[[int], None]) -> Fuzzed:
    """Send ``count`` messages to a lighthouse in a process of its own."""
    folder.mkdir(parents=True)
    lighthouse = Lighthouse(folder, ARM)
    lighthouse.start()
    try:
        assert lighthouse.process is not None
        quorums, harmed = asyncio.run(_send(lighthouse.port, count, random.Random(seed), show))
        return Fuzzed(
            sent=count,
            quorums=quorums,
            harmed=harmed,
            alive=lighthouse.process.poll() is None,
            rss_mb=psutil.Process(lighthouse.process.pid).memory_info().rss / 1e6,
            log_lines=len((folder / "lighthouse-1.err").read_bytes().splitlines()),
        )
    finally:
        lighthouse.kill()


async def _send(
    port: int, count: int, rng: random.Random, show: Callable[[int], None]
) -> tuple[int, int]:
    target = f"localhost:{port}"
    sender, *members = (Calls(target) for _ in range(1 + len(_MEMBERS)))
    quorums = harmed = 0
    # The lighthouse waits for groups that only send heartbeats, unless the last quorum is complete.
    await asyncio.gather(*(m.request(r) for m, r in zip(members, _MEMBERS, strict=True)))
    for sent in range(0, count, _AT_ONCE):
        batch = messages(rng, min(_AT_ONCE, count - sent))
        requests = [m.request(r, step=sent) for m, r in zip(members, _MEMBERS, strict=True)]
        calls = [sender.raw(*message) for message in batch]
        for answer in await asyncio.gather(*requests):
            quorums += 1
            harmed += answer.steps != (sent,) * len(_MEMBERS)
        for call in calls:
            call.cancel()  # what looked like a heartbeat is held
        with suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await asyncio.gather(*calls, return_exceptions=True)
        show(sent)
    for connection in (sender, *members):
        await connection.close()
    return quorums, harmed
