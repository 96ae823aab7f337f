"""End the trainer's process on command: a stuck or stopped one cannot end itself."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable

from torchloom_core.wire.commands import Ack, Command
from torchloom_threadlet.sidecar.publisher import Publisher
from torchloom_threadlet.trainer.command_inbox import CommandInbox

_ACK_WAIT_S = 1.0


class Termination:
    """Decides on commands to terminate, as the trainer does on all others, and kills.

    Parameters
    ----------
    on_stored : callable
        Called once the broker has stored an ack.
    """

    def __init__(
        self,
        pid: int,
        incarnation: int,
        publisher: Publisher,
        on_stored: Callable[[Ack], object],
    ) -> None:
        self._pid = pid
        self._publisher = publisher
        self._on_stored = on_stored
        self._inbox = CommandInbox(incarnation, lambda command: None)

    async def execute(self, command: Command, step: int) -> None:
        """Answer one copy of a command, then end the trainer if the command is accepted.

        The ack goes first, so that it precedes the report of the end; the wait for the broker is
        limited.
        """
        ack, kill = self._inbox.receive(command, time.time_ns(), step)
        if kill:
            ack = self._inbox.settle(command.id, "applied", time.time_ns(), step)
        stored = asyncio.Event()

        def on_stored(ack: Ack) -> None:
            self._on_stored(ack)
            stored.set()

        await self._publisher.ack(ack, on_stored)
        if kill:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stored.wait(), _ACK_WAIT_S)
            self._kill()

    def _kill(self) -> None:
        # Once the trainer has ended its process id may be reused, and we are no child of it.
        if os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGKILL)
