"""Pulls commands for the sidecar: each stays with the broker until its final ack is stored."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command
from torchloom_core.wire.commands import Ack, Command
from torchloom_threadlet.sidecar.connection import BROKER_ERRORS
from torchloom_threadlet.trainer.command_inbox import rejection

_POLL_S = 30.0
_WAITS_S = (0.1, 1.0)

_logger = logging.getLogger(__name__)


class Commands:
    """Pulls the commands for one incarnation of a worker and passes them on.

    JetStream delivers again what is not acked.

    ``on_unreadable``: called with the rejection of a command that cannot be read.
    """

    def __init__(
        self,
        run: str,
        worker: str,
        incarnation: int,
        on_command: Callable[[Command], Awaitable[None]],
        on_unreadable: Callable[[Ack], Awaitable[None]],
    ) -> None:
        self._worker = worker
        self._stream = subjects.command_stream(run)
        self._consumer = subjects.command_consumer(worker, incarnation)
        self._on_command = on_command
        self._on_unreadable = on_unreadable
        self._limited_log = RateLimitedLog(_logger)
        self._open: dict[tuple[str, int], Msg] = {}

    async def pull(self, client: Client) -> None:
        """Pull for ever, over one connection.

        The Weaver creates the consumer after this worker's hello; until then the broker answers
        that there is none.
        """
        with contextlib.suppress(*BROKER_ERRORS):
            subscription = await client.jetstream().pull_subscribe_bind(
                consumer=self._consumer, stream=self._stream
            )
            try:
                await self._poll(subscription)
            finally:
                await subscription.unsubscribe()

    async def _poll(self, subscription: JetStreamContext.PullSubscription) -> None:
        for attempt in itertools.count():
            began_s = time.monotonic()
            try:
                messages = await subscription.fetch(1, timeout=_POLL_S)
            except nats.errors.ConnectionClosedError:
                return
            except BROKER_ERRORS as error:
                if time.monotonic() - began_s < _WAITS_S[1]:
                    _logger.debug("no commands yet: %s", error)
                    await asyncio.sleep(min(_WAITS_S[0] * 2 ** min(attempt, 8), _WAITS_S[1]))
            else:
                for message in messages:
                    await self._take(message)

    async def settled(self, ack: Ack) -> None:
        """Acknowledge to the broker the copies of a command with a final ack, one per epoch."""
        answered = [key for key in self._open if key[0] == ack.command and key[1] <= ack.epoch]
        for key in answered:
            with contextlib.suppress(*BROKER_ERRORS):
                await self._open.pop(key).ack()

    async def _take(self, message: Msg) -> None:
        try:
            command = decode_command(message.data)
        except MessageError as error:
            ack = rejection(message.data, str(error))
            if ack is not None and ack.worker == self._worker:
                self._open[ack.command, ack.epoch] = message
                await self._on_unreadable(ack)
                return
            self._limited_log.add("command", f"dropped an invalid command: {error}")
            with contextlib.suppress(*BROKER_ERRORS):
                await message.term()
            return
        # Replaces an earlier delivery: the broker repeats a command that a hung trainer ignores.
        self._open[command.id, command.epoch] = message
        await self._on_command(command)
