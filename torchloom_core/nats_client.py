"""nats-py's client, less two traps; the Weaver and the sidecars connect with it."""

import asyncio

import nats.errors
from nats.aio.client import Client

_FLUSH_S = 2.0

_LONGEST_S = 60
"""By then the client's own pings have found a silent connection dead, and made another."""


class NatsClient(Client):  # type: ignore[misc]  # nats-py has no types
    """A client on which a flush may be given up, and which can be closed at any moment.

    nats-py cancels the future of a flush that takes too long; the PONG that comes after all then
    ends the task that reads from the server, and nothing more is heard. Here the flush goes on
    behind the back of who has given it up.

    It also cancels a reconnect that is under way when it is closed. Where that one waits for the
    old connection to end, what both wait for is cancelled, and nobody had cancelled who closes.
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
        closing = asyncio.current_task()
        try:
            await super().close()
        except asyncio.CancelledError:
            if closing is None or closing.cancelling():
                raise
        finally:
            for flush in self._flushes:
                flush.cancel()

    def _flushed(self, flush: asyncio.Task[None]) -> None:
        self._flushes.discard(flush)
        if not flush.cancelled():
            flush.exception()  # whoever still waited for it has it; else nobody wants it
