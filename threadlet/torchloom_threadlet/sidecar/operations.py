"""Commands that the sidecar carries out itself, by the parts of the installed capabilities."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torchloom_core.wire.commands import Ack, AckStatus, Command
from torchloom_core.wire.limits import MAX_TEXT
from torchloom_core.wire.links import Measured, measured_text
from torchloom_threadlet.capability import Sidecar, SidecarPart
from torchloom_threadlet.cleaning import error_line, text, warn_once
from torchloom_threadlet.installed_parts import guarded, installed_parts, offered, verb_of
from torchloom_threadlet.sidecar.publisher import Publisher
from torchloom_threadlet.trainer.command_inbox import CommandInbox

_ACK_WAIT_S = 1.0


class SidecarOperations:
    """Decides on these commands, as the trainer does on all others, and does them.

    ``on_stored``: called once the broker has stored a final ack.
    """

    def __init__(
        self,
        sidecar: Sidecar,
        incarnation: int,
        publisher: Publisher,
        on_stored: Callable[[Ack], object],
    ) -> None:
        self._sidecar = sidecar
        self._publisher = publisher
        self._on_stored = on_stored
        self._inbox = CommandInbox(incarnation)
        self._under_way: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        installed = installed_parts(logging.INFO)  # the trainer warns of what cannot be imported
        self._parts: dict[str, SidecarPart[Any]] = {
            verb: part for verb, part in installed.items() if isinstance(part, SidecarPart)
        }

    def offered(self) -> tuple[str, ...]:
        """Return the verbs that this sidecar can do now."""
        parts = self._parts.items()
        return offered({verb: partial(part.is_offered, self._sidecar) for verb, part in parts})

    async def execute(self, command: Command, step: int) -> bool:
        """Answer one copy of a command, and begin it; return False if it is the trainer's."""
        verb = verb_of(command.do)
        part = self._parts.get(verb)
        if part is None:
            return False
        refusal = self._refusal(verb, part, command)
        ack, begins = self._inbox.receive(command, time.time_ns(), step, refusal)
        await self._publisher.ack(ack, self._on_stored)
        if begins:
            self._under_way.add(verb)
            task = asyncio.create_task(self._do(part, command, step))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    def _refusal(self, verb: str, part: SidecarPart[Any], command: Command) -> str:
        try:
            with guarded(part):
                refusal = part.refusal(command.do, self._sidecar)
        except Exception as error:  # noqa: BLE001 - the code of anyone's package
            return error_line(error)
        if not isinstance(refusal, str):
            return f"{verb}: need a text from refusal, was {type(refusal).__name__}"
        return refusal or (f"another {verb} is under way" if verb in self._under_way else "")

    async def _do(self, part: SidecarPart[Any], command: Command, step: int) -> None:
        status: AckStatus = "applied"
        found: str | Measured
        try:
            with guarded(part):
                found = await part.do(command.do, self._sidecar)
        except Exception as error:  # noqa: BLE001 - the code of anyone's package
            status, found = "failed", error_line(error)
        self._under_way.discard(verb_of(command.do))
        measured = found if isinstance(found, Measured) else None
        detail = "" if found is None else text(found, MAX_TEXT)
        if measured is not None:
            detail = measured_text(measured)
        ack = self._inbox.settle(command.id, status, time.time_ns(), step, detail, measured)
        stored = asyncio.Event()

        def on_stored(ack: Ack) -> None:
            self._on_stored(ack)
            stored.set()

        await self._publisher.ack(ack, on_stored)
        if status == "applied":
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(stored.wait(), _ACK_WAIT_S)
            try:
                with guarded(part):
                    await part.finish(command.do, self._sidecar)
            except Exception as error:  # noqa: BLE001 - the code of anyone's package
                warn_once(f"operation {verb_of(command.do)}", f"finish: {error_line(error)}")
