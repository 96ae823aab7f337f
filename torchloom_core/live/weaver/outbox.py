"""Store and send the kernel's outputs, in order, and state before commands.

Only the newest value of each state entry is stored; the commands of the same inputs follow. If
a Weaver is killed in between, its successor finds the rest in the trajectory
(:mod:`torchloom_core.live.weaver.recovery`).

A worker compares a command's deadline with its own clock: if that is far ahead, every command
would be too late. The hello has the time at which it was sent, so a clock that is ahead is
visible; one that is behind cannot be distinguished from a slow hello.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from torchloom_core.floor.clock import SECOND_NS, Clock
from torchloom_core.floor.errors import BrokerError, RefusedByBrokerError
from torchloom_core.floor.first_done import first_done
from torchloom_core.floor.persistent_table import Changes
from torchloom_core.live.transport import NatsBus
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.live.weaver.state_slots import StateSlots
from torchloom_core.wire import codec
from torchloom_core.wire.commands import Command
from torchloom_core.wire.decisions import CommandStatus, Issue, Notice, Output, Withdrawal
from torchloom_core.wire.messages import Hello

log = logging.getLogger(__name__)

AT_KEY = "at"

RECORDED_HERE = (CommandStatus, Issue, Notice)
"""Outputs that the outbox records before it sends them, many at once: a write costs ten acks."""

_PAUSE_S = 1.0
_MOST_UNPUBLISHED = 50_000
_CALL_EVERY_NS = 5 * SECOND_NS
_PUBLISHED_AT_ONCE = 500

_APART_NS = 5 * SECOND_NS
"""A smaller difference is ignored: deadlines are longer."""

_FURTHEST_NS = 10 * 366 * 86_400 * SECOND_NS


class At(msgspec.Struct, frozen=True, kw_only=True):
    """The input of the epoch up to which the stored state goes."""

    seq: int


class Outbox:
    """What is still to be stored, sent and published, and the task that does it.

    While the broker is unreachable, one value per state entry waits, commands wait until their
    deadline, and the newest messages wait to be published. ``withheld`` gets the ids of commands
    that were withdrawn before they were sent; ``record`` puts on record what was posted, before
    any of it is stored or sent.
    """

    def __init__(
        self,
        bus: NatsBus,
        clock: Clock,
        epoch: int,
        courier: Courier,
        withheld: Callable[[tuple[str, ...]], None],
        record: Callable[[], None] = lambda: None,
    ) -> None:
        self._bus = bus
        self._courier = courier
        self._clock = clock
        self._epoch = epoch
        self._withheld = withheld
        self._record = record
        self._held: list[str] = []
        self._unsent: list[str] = []
        self._slots = StateSlots()
        self._entries: dict[str, msgspec.Struct | None] = {}
        self._without_hello: Sequence[str] = ()
        self._call_ns = 0
        self._posted_seq = self._stored_seq = 0
        self._stored_more = asyncio.Event()
        self._unpublished: deque[Output] = deque(maxlen=_MOST_UNPUBLISHED)
        self._publishable: deque[Output] = deque(maxlen=_MOST_UNPUBLISHED)
        self._some, self._some_publishable = asyncio.Event(), asyncio.Event()
        self._is_storing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def waiting(self) -> dict[str, int]:
        """Return how many entries wait, by queue."""
        return {
            "state": len(self._entries),
            "commands": self._courier.waiting(),
            "publications": len(self._unpublished) + len(self._publishable),
        }

    def post(self, outputs: Sequence[Output], changes: Changes, seq: int) -> None:
        """Take the outputs of input ``seq``, and the changes of the state."""
        if not outputs and not changes:
            return
        for name, entry in changes.items():
            if entry is None:
                self._entries[self._slots.release(name)] = None
                continue
            key, begins = self._slots.take(name)
            if begins:
                self._entries.pop(key, None)  # it goes after what was stored before it
            self._entries[key] = entry
        self._entries.pop(AT_KEY, None)  # it goes last
        self._entries[AT_KEY] = At(seq=seq)
        self._posted_seq = seq
        for output in outputs:
            match output:
                case Issue(command=command):
                    self._courier.hold(command)
                    self._held.append(command.id)
                case Withdrawal(command=command_id):
                    never_sent = self._courier.withdraw(command_id)
                    # The last Weaver may have sent a command of an earlier epoch.
                    if never_sent and command_id.startswith(f"c{self._epoch}."):
                        self._unsent.append(command_id)
                case CommandStatus():
                    self._courier.note(output.command, output.status)
        self._unpublished.extend(outputs)
        self._idle.clear()
        self._some.set()

    def call(self, workers: Sequence[str]) -> None:
        """Request a hello from these workers, a call every 5 s at most."""
        if workers:
            self._without_hello = workers
            self._idle.clear()
            self._some.set()

    async def run(self) -> None:
        """Send until cancelled, while the broker is reachable; or raise RefusedByBrokerError."""
        await first_done(self._store_and_send(), self._publish(), self._courier.run())

    async def _store_and_send(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            self._is_storing = True
            # What is posted while this is stored is not sent before its own state is stored.
            held, self._held = self._held, []
            unsent, self._unsent = self._unsent, []
            published, self._unpublished = self._unpublished, deque(maxlen=_MOST_UNPUBLISHED)
            await self.store()
            self._courier.send(held)
            if unsent:
                self._withheld(tuple(unsent))
            await self._call_without_hello()
            self._publishable.extend(published)
            self._some_publishable.set()
            self._is_storing = False

    async def _publish(self) -> None:
        """Publish what is stored, while more is: reports are acknowledged once that is done."""
        while True:
            await self._some_publishable.wait()
            self._some_publishable.clear()
            while self._publishable:
                self._record()
                for _ in range(min(_PUBLISHED_AT_ONCE, len(self._publishable))):
                    output = self._publishable.popleft()
                    self._bus.publish(str(output.__struct_config__.tag), output)
                await asyncio.sleep(0)  # let the bus publish them
            if not self._some.is_set() and not self._is_storing:
                self._idle.set()

    async def drained(self) -> None:
        """Wait until everything posted so far was sent."""
        await self._idle.wait()
        await self._courier.drained()

    async def stored(self, seq: int) -> None:
        """Wait until the state up to input ``seq``, whose outputs were posted, is stored."""
        while self._stored_seq < seq:
            await self._stored_more.wait()

    async def settled(self) -> None:
        """Wait until the state up to everything posted so far is stored."""
        await self.stored(self._posted_seq)

    async def store(self) -> None:
        """Store the changed entries, however long that takes; raises as :meth:`run` does."""
        entries, self._entries = self._entries, {}
        while entries:
            self._record()
            seq = self._posted_seq
            try:
                await self._bus.store({key: _encoded(entry) for key, entry in entries.items()})
                self._stored_seq = seq
                self._stored_more.set()
                return self._stored_more.clear()
            except RefusedByBrokerError:
                raise
            except BrokerError as error:
                log.warning("the state is not stored yet: %s", error)
                await asyncio.sleep(_PAUSE_S)
                newer, self._entries = self._entries, {}
                entries = {key: old for key, old in entries.items() if key not in newer} | newer

    async def _call_without_hello(self) -> None:
        """Request a hello from workers that report without one; each tick names them again."""
        without_hello, self._without_hello = self._without_hello, ()
        now_ns = self._clock.now_ns()
        if not without_hello or now_ns < self._call_ns:
            return
        self._call_ns = now_ns + _CALL_EVERY_NS
        try:
            await self._bus.roll_call(self._epoch, without_hello)
        except BrokerError as error:
            log.warning("%s", error)


def _encoded(entry: msgspec.Struct | None) -> bytes | None:
    return None if entry is None else codec.encode(entry)


class WorkerClocks:
    """How far each worker's clock is ahead of the Weaver's."""

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._ahead_ns: dict[tuple[str, int], int] = {}

    def take(self, hello: Hello, now_ns: int) -> None:
        """Take the time in a hello; of an incarnation's hellos the quickest counts."""
        incarnation = hello.worker, hello.incarnation
        ahead_ns = max(self._ahead_ns.get(incarnation, 0), min(hello.ts_ns - now_ns, _FURTHEST_NS))
        if ahead_ns <= _APART_NS:
            return
        self._ahead_ns[incarnation] = ahead_ns
        self._warn(
            "clocks",
            f"the clock of {hello.worker}'s host (node {hello.node}) is {ahead_ns / SECOND_NS:.0f} "
            "s ahead of this host's: its commands' deadlines are shifted by as much; synchronize "
            "both clocks (NTP)",
        )

    def forget(self, worker: str) -> None:
        """Forget the clock of a worker."""
        for incarnation in [one for one in self._ahead_ns if one[0] == worker]:
            del self._ahead_ns[incarnation]

    def check_own(self, ahead_s: float) -> None:
        """Warn if this host's clock was set by so much since the Weaver started."""
        if abs(ahead_s) > _APART_NS / SECOND_NS:
            self._warn(
                "clock",
                f"the wall clock was set by {ahead_s:+.0f} s since this Weaver started, and the "
                "Weaver uses the old time; command deadlines may be wrong: restart the Weaver",
            )

    def moved(self, command: Command) -> Command:
        """Return the command with its times shifted to the worker's clock."""
        ahead_ns = self._ahead_ns.get((command.worker, command.incarnation), 0)
        if not ahead_ns:
            return command
        return msgspec.structs.replace(
            command,
            issued_ns=command.issued_ns + ahead_ns,
            deadline_ns=command.deadline_ns + ahead_ns,
        )
