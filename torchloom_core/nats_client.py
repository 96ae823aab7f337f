"""nats-py's client, less one trap; the Weaver and the sidecars connect with it."""

import asyncio

import nats.errors
from nats.aio.client import Client

_FLUSH_S = 2.0

_LONGEST_S = 60
"""By then the client's own pings have found a silent connection dead, and made another."""


class NatsClient(Client):  # type: ignore[misc]  # nats-py has no types
    """A client on which a flush may be given up.

    nats-py cancels the future of a flush that takes too long; the PONG that comes after all then
    ends the task that reads from the server, and nothing more is heard. Here the flush goes on
    behind the back of who has given it up.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flushes: set[asyncio.Task[None]] = set()

    async def flush(self, timeout: float = _FLUSH_S) -> None:
        """Wait until the server has handled what was sent.

        Raises
        ------
        nats.errors.FlushTimeoutError
            If it takes longer than ``timeout``, seconds.
        """
        flush = asyncio.create_task(super().flush(_LONGEST_S))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushed)
        await asyncio.wait({flush}, timeout=timeout)
        if not flush.done():
            raise nats.errors.FlushTimeoutError
        flush.result()

    async def close(self) -> None:
        """Close the connection."""
        await super().close()
        for flush in self._flushes:
            flush.cancel()

    def _flushed(self, flush: asyncio.Task[None]) -> None:
        self._flushes.discard(flush)
        if not flush.cancelled():
            flush.exception()  # whoever still waited for it has it; else nobody wants it
