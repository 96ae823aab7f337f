"""Acknowledge reports to the broker once what follows from them is stored.

Until then the report is still at the broker, and the next Weaver gets it, also if this host and
its trajectory are lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from nats.aio.msg import Msg

from torchloom_core.floor.first_done import end_all
from torchloom_core.live.transport.lease import Lease

_DURABLE_S = 2.0
"""A state that takes longer to store is not waited for: reports would be delivered again."""

Durable = Callable[[], Awaitable[None]] | None
"""Waits until what follows from the reports so far is stored; None: nothing does."""


class Acknowledgements:
    """The reports that were handled and are to be acknowledged, in their order."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._handled: asyncio.Queue[Msg] = asyncio.Queue()
        self._running = asyncio.create_task(self._run())
        self.durable: Durable = None

    def add(self, msg: Msg) -> None:
        """Take a report that was handled."""
        self._handled.put_nowait(msg)

    async def finish(self) -> None:
        """Wait until all are acknowledged, unless another Weaver has taken the lease."""
        done = asyncio.create_task(self._handled.join())
        await asyncio.wait({done, self._running}, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()

    async def close(self) -> None:
        """Acknowledge no more."""
        await end_all(self._running)

    async def _run(self) -> None:
        """Acknowledge; nothing while this Weaver is not sure of its lease."""
        while True:
            messages = [await self._handled.get()]
            while not self._handled.empty():
                messages.append(self._handled.get_nowait())
            if self.durable is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.durable(), _DURABLE_S)
            await self._lease.sure()
            # Of each consumer the last one: it acknowledges those before it.
            for msg in {msg.metadata.consumer: msg for msg in messages}.values():
                with suppress(nats.errors.Error):
                    await msg.ack()
            for _ in messages:
                self._handled.task_done()
