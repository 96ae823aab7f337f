"""Sends open commands to their workers, and again until an ack: nobody stores them on the way.

A command on its way may be lost, such as while its worker reconnects or its sidecar is restarted.
The lasting copy is the flight in the Weaver's state, from which a successor sends it again.
"""

import asyncio
import heapq
import itertools
import logging
import math
from collections.abc import Callable, Iterable
from contextlib import suppress

from torchloom_core.floor.clock import SECOND_NS, Clock
from torchloom_core.floor.errors import BrokerError, RefusedByBrokerError
from torchloom_core.live.transport import NatsBus
from torchloom_core.wire.commands import FINAL_STATUSES, Command

log = logging.getLogger(__name__)

_WAITS_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""After how long a command without an ack is sent again; the last interval repeats."""

_WITH_ACK_S = 60.0
"""The same for one that its worker has: its trainer has a long step, or hangs."""

_AFTER_HELLO_S = 60.0
"""How long a worker's hello has its commands sent that are past their deadline."""

_EVERY_NS = SECOND_NS
"""A worker's hellos repeat a command at most so often."""

_AT_ONCE = 500
_PAUSE_S = 1.0


class _Open:
    """A command without a final status."""

    __slots__ = ("command", "due_ns", "is_held", "number", "sent_ns", "tries", "until_ns")

    def __init__(self, command: Command, number: int) -> None:
        self.command = command
        self.number = number
        self.is_held = True
        self.due_ns = 0
        self.until_ns = command.deadline_ns
        self.sent_ns = 0
        self.tries = 0


class Courier:
    """The commands in flight under one epoch, and the task that sends them.

    A command past its deadline is sent only to a worker that says hello: a rank that was
    unreachable still has to answer, if only that it was too late. ``moved`` shifts a command's
    times to its host's clock.
    """

    def __init__(
        self,
        bus: NatsBus,
        clock: Clock,
        moved: Callable[[Command], Command] = lambda command: command,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._moved = moved
        self._open: dict[str, _Open] = {}
        self._of: dict[tuple[str, int], dict[str, None]] = {}
        self._numbers = itertools.count()
        self._due: list[tuple[int, int, str]] = []
        self._some = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def hold(self, command: Command) -> None:
        """Take a command that must not be sent yet."""
        self._open[command.id] = _Open(command, next(self._numbers))
        self._of.setdefault(_process(command), {})[command.id] = None

    def send(self, command_ids: Iterable[str]) -> None:
        """Send these, whose state is stored now, unless they were withdrawn meanwhile."""
        now_ns = self._clock.now_ns()
        for command_id in command_ids:
            if (one := self._open.get(command_id)) is not None:
                one.is_held = False
                self._schedule(one, now_ns)
                self._idle.clear()

    def reached(self, worker: str, incarnation: int) -> None:
        """Repeat all that is open for an incarnation, which has just said hello."""
        now_ns = self._clock.now_ns()
        for command_id in self._of.get((worker, incarnation), ()):
            one = self._open[command_id]
            if not one.is_held:
                due_ns = max(now_ns, one.sent_ns + _EVERY_NS)
                one.until_ns = max(one.until_ns, due_ns + round(_AFTER_HELLO_S * SECOND_NS))
                one.tries = 0
                self._schedule(one, due_ns)

    def note(self, command_id: str, status: str) -> None:
        """Take a new status of a command: a final one ends it."""
        one = self._open.get(command_id)
        if one is None:
            return
        if status in FINAL_STATUSES:
            self._forget(one.command)
        elif status != "issued" and not one.is_held:
            self._schedule(one, self._clock.now_ns() + round(_WITH_ACK_S * SECOND_NS))

    def withdraw(self, command_id: str) -> bool:
        """Send a command no more; return whether it never was."""
        one = self._open.get(command_id)
        if one is None:
            return False
        self._forget(one.command)
        return not one.sent_ns

    def waiting(self) -> int:
        """Return how many commands were not sent yet."""
        return sum(not one.sent_ns for one in self._open.values())

    def due(self) -> list[Command]:
        """Return the next batch of commands to send, taken as sent, in the order of their issue."""
        now_ns = self._clock.now_ns()
        batch: list[Command] = []
        while len(batch) < _AT_ONCE and self._next_ns() <= now_ns:
            due_ns, _, command_id = heapq.heappop(self._due)
            one = self._open.get(command_id)
            if one is None or one.due_ns != due_ns or now_ns > one.until_ns:
                continue
            batch.append(one.command)
            one.sent_ns = now_ns
            wait_s = _WAITS_S[min(one.tries, len(_WAITS_S) - 1)]
            one.tries += 1
            self._schedule(one, now_ns + round(wait_s * SECOND_NS))
        return batch

    async def run(self) -> None:
        """Send until cancelled, while the broker is reachable; or raise RefusedByBrokerError."""
        while True:
            await self._until_due()
            await self._bus.connected()
            batch = self.due()
            try:
                if batch:
                    await self._bus.send([self._moved(command) for command in batch])
            except RefusedByBrokerError:
                raise
            except BrokerError as error:
                text = "%d commands are sent again later, the first is %s to %s: %s"
                log.warning(text, len(batch), batch[0].id, batch[0].worker, error)
                await asyncio.sleep(_PAUSE_S)

    async def drained(self) -> None:
        """Wait until no command is due."""
        await self._idle.wait()

    async def _until_due(self) -> None:
        while (wait_ns := self._next_ns() - self._clock.now_ns()) > 0:
            self._idle.set()
            self._some.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ns / SECOND_NS):
                    await self._some.wait()

    def _next_ns(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def _schedule(self, one: _Open, due_ns: int) -> None:
        one.due_ns = due_ns
        if due_ns > one.until_ns:
            return
        if due_ns < self._next_ns():
            self._some.set()
        heapq.heappush(self._due, (due_ns, one.number, one.command.id))

    def _forget(self, command: Command) -> None:
        del self._open[command.id]
        of_process = self._of[_process(command)]
        del of_process[command.id]
        if not of_process:
            del self._of[_process(command)]


def _process(command: Command) -> tuple[str, int]:
    return command.worker, command.incarnation
