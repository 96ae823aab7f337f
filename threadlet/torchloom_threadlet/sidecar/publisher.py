"""Sends the sidecar's events and acks, and stores them until the broker has them."""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator

from nats.aio.client import Client

from torchloom_core.floor.quota import Quota
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_REPORT_BYTES, encode
from torchloom_core.wire.commands import FINAL_STATUSES, Ack
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_threadlet.sidecar.connection import Connection
from torchloom_threadlet.sidecar.joining import BROKER_ERRORS

_MOST_NOTES = 1000
_NOTES = {"per_s": 20.0, "rest_s": 50.0}
"""Rate limit of notes: half of what the Weaver takes, of which it drops the rest."""

_ACKS_FIRST_S = 20.0
"""How long the exit waits for final acks, in seconds: a sidecar ends 30 s after its trainer."""

_TRY_S = 2.0
_WAITS_S = (0.1, 2.0)


class Publisher:
    """Sends the events and acks of one incarnation of a worker."""

    def __init__(self, uplink: Connection, run: str, worker: str, incarnation: int) -> None:
        self._uplink = uplink
        self._event_subject = subjects.event(run, worker, incarnation)
        self._bulk_subject = subjects.bulk(run, worker, incarnation)
        self._ack_subject = subjects.ack(run, worker, incarnation)
        self._hello: Hello | None = None
        self._notes: deque[Note] = deque(maxlen=_MOST_NOTES)
        self._quota = Quota(**_NOTES)
        self._exit: Exit | None = None
        self._overtakes = False
        self._some = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._storing: dict[tuple[str, int], asyncio.Task[None]] = {}

    def event(self, message: Hello | Exit | Note) -> None:
        """Queue an event: the newest hello goes first, the exit last, and notes between.

        The exit waits until the final acks are stored, since the Weaver gives up commands that a
        worker has not acknowledged when it ends. Of too many waiting notes the oldest is dropped.
        """
        match message:
            case Hello():
                self._hello = message
            case Exit():
                self._exit = message
                asyncio.get_running_loop().call_later(_ACKS_FIRST_S, self._overtake)
            case Note():
                self._notes.append(message)
        self._empty.clear()
        self._some.set()

    async def ack(self, ack: Ack, on_stored: Callable[[Ack], object] | None = None) -> None:
        """Send an ack; a final one is repeated until it is stored, then ``on_stored`` is called."""
        if ack.status in FINAL_STATUSES:
            key = ack.command, ack.epoch
            if key not in self._storing:
                self._storing[key] = asyncio.create_task(self._store(ack, on_stored))
        elif (client := self._uplink.client) is not None:
            # Not worth storing: the final ack will contain more.
            with contextlib.suppress(*BROKER_ERRORS):
                await client.publish(self._ack_subject, encode(ack), headers=self._message_id(ack))

    async def run(self) -> None:
        """Send events for ever, in order."""
        while True:
            await self._some.wait()
            client = await self._uplink.connected()
            batch = list(self._allowed())
            if not batch:
                await asyncio.sleep(1 / _NOTES["per_s"])
                continue
            if await self._send(client, batch):
                self._forget(batch)
            else:
                await asyncio.sleep(_WAITS_S[0])
            if not self._waiting():
                self._some.clear()
                if self._exit is None:
                    self._empty.set()

    async def finish(self) -> None:
        """Wait until everything is sent."""
        await self._empty.wait()
        while self._storing:
            await asyncio.wait(self._storing.values())

    def _allowed(self) -> Iterator[Hello | Exit | Note]:
        """Yield what waits, up to the first note over the rate limit; at the exit all of it."""
        for event in self._waiting():
            over = isinstance(event, Note) and not self._quota.takes("", time.monotonic_ns())
            if over and self._exit is None:
                return
            yield event

    def _waiting(self) -> list[Hello | Exit | Note]:
        end = self._exit if self._overtakes or not self._storing else None
        return [e for e in (self._hello, *self._notes, end) if e is not None]

    def _overtake(self) -> None:
        self._overtakes = True
        self._some.set()

    def _forget(self, sent: list[Hello | Exit | Note]) -> None:
        over = set(map(id, sent))
        self._hello = None if id(self._hello) in over else self._hello
        self._exit = None if id(self._exit) in over else self._exit
        self._notes = deque((n for n in self._notes if id(n) not in over), maxlen=_MOST_NOTES)

    async def _send(self, client: Client, batch: list[Hello | Exit | Note]) -> bool:
        """Publish and return whether the broker has received all."""
        connections = client.stats["reconnects"]
        try:
            for event in batch:
                data = encode(event)
                large = len(data) > MAX_REPORT_BYTES
                await client.publish(self._bulk_subject if large else self._event_subject, data)
            await client.flush(timeout=_TRY_S)
        except BROKER_ERRORS:
            return False
        # A flush of a disconnected client returns at once and proves nothing.
        return client.is_connected and bool(client.stats["reconnects"] == connections)

    async def _store(self, ack: Ack, on_stored: Callable[[Ack], object] | None) -> None:
        data, headers = encode(ack), self._message_id(ack)
        try:
            for attempt in itertools.count():
                stream = (await self._uplink.connected()).jetstream()
                try:
                    await stream.publish(self._ack_subject, data, timeout=_TRY_S, headers=headers)
                    break
                except BROKER_ERRORS:
                    await asyncio.sleep(min(_WAITS_S[0] * 2**attempt, _WAITS_S[1]))
        finally:
            del self._storing[ack.command, ack.epoch]
            if self._exit is not None:
                self._some.set()  # it may have waited for this ack
        if on_stored is not None:
            on_stored(ack)

    def _message_id(self, ack: Ack) -> dict[str, str]:
        return {"Nats-Msg-Id": f"{ack.command}:{ack.epoch}:{ack.status}:{self._uplink.mark}"}


def news(hello: Hello) -> tuple[object, ...]:
    """Return what is sent to the Weaver at once when it has changed.

    Of values only those that all ranks share: a peer may have set them. A value that a command set
    on this worker alone is in the command's ack.
    """
    fenced = [hello.values.get(spec.name) for spec in hello.knobs if spec.fence == "run"]
    return (
        hello.knobs,
        hello.actuators,
        hello.tries,
        hello.replica_id,
        hello.quorum_id,
        hello.resumes,
        fenced,
    )
