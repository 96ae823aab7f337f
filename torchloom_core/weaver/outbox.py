"""Send what the kernel gives out, in order, and state before commands.

For every batch of outputs the new state is put into the run's bucket first and the commands
follow: a Weaver that dies in between leaves behind either nothing or a command that its
successor sends again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import Protocol

from torchloom_core import codec
from torchloom_core.clock import Clock
from torchloom_core.decisions import (
    CommandLife,
    Control,
    CordonOver,
    Issue,
    KnobDesired,
    Notice,
    Outcome,
    Output,
    Recall,
    Reply,
    Verdict,
)
from torchloom_core.errors import BrokerError
from torchloom_core.messages import Command

log = logging.getLogger(__name__)

CONTROL_KEY = "control"


def may_change_control(output: Output) -> bool:
    """Say whether the kernel's state may differ after this output."""
    fault = isinstance(output, Notice) and output.kind == "fault"
    return fault or isinstance(
        output, CommandLife | CordonOver | KnobDesired | Outcome | Reply | Verdict
    )


class Bus(Protocol):
    """The part of the NATS bus that the outbox uses."""

    async def put(self, key: str, data: bytes) -> None:
        """Store a value in the run's bucket."""

    async def send(self, command: Command) -> None:
        """Store a command until its worker has acknowledged it."""

    async def recall(self, worker: str) -> None:
        """Drop the commands that have not reached the worker."""

    async def add_worker(self, worker: str) -> None:
        """Make the consumer through which the worker gets its commands."""

    async def roll_call(self, epoch: int) -> None:
        """Ask every worker to say hello."""

    def tell(self, kind: str, message: Output) -> None:
        """Publish a message for whoever watches."""


class Outbox:
    """A queue of kernel outputs and the task that sends them."""

    def __init__(self, bus: Bus, clock: Clock, epoch: int) -> None:
        self._bus = bus
        self._clock = clock
        self._epoch = epoch
        self._queue: asyncio.Queue[tuple[Sequence[Output], bytes | None]] = asyncio.Queue()
        self._last_control = b""

    def post(self, outputs: Sequence[Output], control: Control | None) -> None:
        """Queue outputs, and the state after them where it may have changed."""
        encoded = codec.encode(control) if control is not None else None
        if encoded == self._last_control:
            encoded = None
        elif encoded is not None:
            self._last_control = encoded
        self._queue.put_nowait((outputs, encoded))

    async def run(self) -> None:
        """Send for ever; a broker that is away is waited for."""
        while True:
            outputs, control = await self._queue.get()
            try:
                await self._send(outputs, control)
            finally:
                self._queue.task_done()

    async def drained(self) -> None:
        """Wait until everything queued so far was sent."""
        await self._queue.join()

    async def _send(self, outputs: Sequence[Output], control: bytes | None) -> None:
        for output in outputs:
            if isinstance(output, KnobDesired):
                key = f"knob.{output.worker or 'all'}.{output.knob}"
                await self._put(key, codec.encode(output))
        if control is not None:
            await self._put(CONTROL_KEY, control)
        strangers = False
        for output in outputs:
            match output:
                case Issue(command=command):
                    await self._command(command)
                case Recall(worker=worker):
                    await self._once(self._bus.recall(worker))
                case Notice(kind="hello", worker=worker):
                    await self._once(self._bus.add_worker(worker))
                case Notice(kind="stranger"):
                    strangers = True
                case _:
                    pass
            self._bus.tell(str(output.__struct_config__.tag), output)
        if strangers:
            await self._once(self._bus.roll_call(self._epoch))

    async def _put(self, key: str, data: bytes) -> None:
        while True:
            try:
                return await self._bus.put(key, data)
            except BrokerError as error:
                log.warning("state %s is not stored yet: %s", key, error)

    async def _command(self, command: Command) -> None:
        while self._clock.now_ns() <= command.deadline_ns:
            try:
                return await self._bus.send(command)
            except BrokerError as error:
                log.warning("command %s to %s waits: %s", command.id, command.worker, error)
        log.warning("command %s to %s passed its deadline unsent", command.id, command.worker)
        return None

    async def _once(self, call: Awaitable[None]) -> None:
        try:
            await call
        except BrokerError as error:
            log.warning("%s", error)
