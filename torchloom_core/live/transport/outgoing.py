"""Messages for subscribers: published in order, and lost without a broker."""

import asyncio
from contextlib import suppress

import msgspec
import nats.errors

from torchloom_core.live.transport.connection import Connection
from torchloom_core.wire.codec import encode

_MOST_WAITING = 4096


class Outgoing:
    """The queue of such messages; ``task`` publishes them until it is cancelled."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(_MOST_WAITING)
        self.task = asyncio.create_task(self._run())

    def add(self, subject: str, message: msgspec.Struct) -> None:
        """Publish a message soon; one too many is dropped."""
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait((subject, encode(message)))

    async def sent(self) -> None:
        """Wait until all are published."""
        await self._waiting.join()

    async def _run(self) -> None:
        while True:
            subject, data = await self._waiting.get()
            if self._link.is_connected:
                with suppress(nats.errors.Error):
                    await self._link.client.publish(subject, data)
            self._waiting.task_done()
