"""Probe commands, which the sidecar carries out one at a time."""

import asyncio
import time
from collections.abc import Callable

from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.links import measured_text
from torchloom_core.wire.operations import Probe
from torchloom_threadlet.sidecar.probing.sender import ProbeFailedError, measure
from torchloom_threadlet.sidecar.publisher import Publisher
from torchloom_threadlet.trainer.command_inbox import CommandInbox


class Probing:
    """Decides on probe commands, as the trainer does on all others, and probes.

    Parameters
    ----------
    offers : callable
        Returns whether this sidecar takes part in probes.
    on_stored : callable
        Called once the broker has stored a final ack.
    """

    def __init__(
        self,
        incarnation: int,
        publisher: Publisher,
        offers: Callable[[], bool],
        on_stored: Callable[[Ack], object],
    ) -> None:
        self._publisher = publisher
        self._offers = offers
        self._on_stored = on_stored
        self._inbox = CommandInbox(incarnation, self._refusal)
        self._task: asyncio.Task[None] | None = None

    def _refusal(self, command: Command) -> str | None:
        if not self._offers():
            return "this worker takes no probes: TORCHLOOM_LINK_ADDRESS is not set or not usable"
        return "another probe is under way" if self._task and not self._task.done() else None

    async def execute(self, command: Command, operation: Probe, step: int) -> None:
        """Answer one copy of a command, and begin to probe if it is accepted."""
        ack, begins = self._inbox.receive(command, time.time_ns(), step)
        await self._publisher.ack(ack, self._on_stored)
        if begins:
            self._task = asyncio.create_task(self._probe(command.id, operation, step))

    async def _probe(self, command_id: str, operation: Probe, step: int) -> None:
        try:
            measured = await measure(operation)
        except ProbeFailedError as error:
            ack = self._inbox.settle(command_id, "failed", time.time_ns(), step, str(error))
        else:
            ack = self._inbox.settle(
                command_id, "applied", time.time_ns(), step, measured_text(measured), measured
            )
        await self._publisher.ack(ack, self._on_stored)
