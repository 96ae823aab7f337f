"""Receives commands for the sidecar, on the subject of one incarnation of its worker."""

import logging
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.aio.msg import Msg

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_command
from torchloom_core.wire.commands import Ack, Command
from torchloom_threadlet.trainer.command_inbox import rejection

_logger = logging.getLogger(__name__)


class Commands:
    """Passes on the commands for one incarnation of a worker, each as often as it comes.

    The Weaver repeats a command until it is acked, and at each hello. A server's answer to another
    client can arrive on this subject, if that is the reply subject of the question; so only a
    command that names this incarnation counts.

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
        self._identity = run, worker, incarnation
        self._on_command = on_command
        self._on_unreadable = on_unreadable
        self._limited_log = RateLimitedLog(_logger)

    async def subscribe(self, client: Client) -> None:
        """Receive over this connection, before its hello: the Weaver answers that with commands."""
        await client.subscribe(subjects.command(*self._identity), cb=self.take)

    async def take(self, message: Msg) -> None:
        """Pass on a command."""
        try:
            command = decode_command(message.data)
        except MessageError as error:
            ack = rejection(message.data, str(error))
            if ack is not None and self._is_mine(ack):
                await self._on_unreadable(ack)
            else:
                self._limited_log.add("command", f"dropped an invalid command: {error}")
            return
        if self._is_mine(command):
            await self._on_command(command)
        else:
            own = ", ".join(map(str, self._identity))
            text = f"dropped a command to another worker: need {own}, was {command.worker}"
            self._limited_log.add("command", text)

    def _is_mine(self, message: Command | Ack) -> bool:
        return (message.run, message.worker, message.incarnation) == self._identity
