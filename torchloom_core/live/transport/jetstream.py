"""The run's streams and consumers, and writes that survive a broker restart."""

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, MAX_REPORT_BYTES, encode
from torchloom_core.wire.commands import Command
from torchloom_core.wire.limits import MAX_WORKERS

REQUEST_TIMEOUT_S = 2
_MAX_AGE_S = 7 * 24 * 3600
_DUPLICATES_S = 600
_COMMAND_WAITS_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""After how long an unacknowledged command is redelivered; the last interval repeats.

The first is how long a restarted sidecar waits for what its predecessor had pulled; the later
ones are for trainers with a long step, or that hang.
"""

_CONSUMER_IDLE_S = 3600.0
_CONSUMER_SURE_S = _CONSUMER_IDLE_S / 2
"""How long a consumer that was made here is assumed to exist."""

_REPORT_BYTES = (1 << 30, 1 << 28, 1 << 26, 1 << 24, -1)
_BULK_BYTES = _REPORT_BYTES[1:]
"""Sizes to try for the streams of reports and of large events; beyond it the oldest messages are
deleted. A server reserves the space, and has less on a disk that is nearly full; it always accepts
an unbounded stream, whose limit is the disk."""
_SHARE = 16
"""Each subject of a worker gets this fraction of a stream: when a worker sends more, only its own
oldest messages are deleted."""
_NO_ROOM = frozenset({10002, 10047, 10122})
"""Error codes for a limit of the account, of the server, and of the account for one stream."""
_COPIES = 3
"""Replicas of each stream on a cluster of at least this many servers: any one may fail."""
_NO_PEERS = frozenset({10005, 10074})
"""Error codes for too few servers of the cluster with JetStream on."""
_MESSAGE_ID = "Nats-Msg-Id"

_NOT_THERE = 10057
_PLACES = 100_000
"""Number of commands whose sequence numbers are remembered, to withdraw them one by one."""

AT_ONCE = 2000
_ANSWERED_S = 10.0


class Message(NamedTuple):
    """A message to store in a stream."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class JetStream:
    """The streams of one run, each stored by ``copies`` servers: commands, and reports."""

    def __init__(self, link: Connection, run: str) -> None:
        self._link = link
        self._run = run
        self.context: JetStreamContext = link.client.jetstream(timeout=REQUEST_TIMEOUT_S)
        servers = link.client._server_info.get("connect_urls") or ()
        self.copies = _COPIES if len(servers) >= _COPIES else 1
        self._places: dict[str, int] = {}
        self._unanswered: set[str] = set()
        self._first_place: int | None = None
        self._incarnations: dict[str, tuple[int, float]] = {}

    async def check(self, url: str) -> None:
        """Raise BrokerError unless JetStream is on for our account, and we may use its API."""

        async def look() -> None:
            try:
                await self.context.account_info()
            except nats.js.errors.Error as error:
                raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None

        await self._link.persist_if_allowed("look for JetStream", look)

    async def make(self) -> None:
        """Create the streams, or update their configuration."""
        run = self._run
        await self._make_stream(subjects.command_stream(run), subjects.command(run))
        accepts = subjects.ack(run), subjects.event(run)
        await self._make_shared(
            subjects.report_stream(run),
            *accepts,
            sizes=_REPORT_BYTES,
            message_bytes=MAX_REPORT_BYTES,
        )
        await self._make_shared(
            subjects.bulk_stream(run),
            subjects.bulk(run),
            sizes=_BULK_BYTES,
            message_bytes=MAX_MESSAGE_BYTES,
        )

    async def add_worker(self, worker: str, incarnation: int) -> None:
        """Create the durable consumer from which an incarnation pulls its commands.

        The previous incarnation's consumer is deleted. An idle one expires after an hour; it is
        created again, with all commands of that incarnation, when the worker is back.
        """
        before, made_s = self._incarnations.get(worker, (incarnation, -math.inf))
        now_s = time.monotonic()
        if before == incarnation and now_s - made_s < _CONSUMER_SURE_S:
            return
        consumer = ConsumerConfig(
            durable_name=subjects.command_consumer(worker, incarnation),
            filter_subject=subjects.command(self._run, worker, incarnation),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_COMMAND_WAITS_S[0],
            backoff=list(_COMMAND_WAITS_S),
            inactive_threshold=_CONSUMER_IDLE_S,
        )
        stream = subjects.command_stream(self._run)
        await self._link.persist(
            f"make the consumer of {worker}", lambda: self.context.add_consumer(stream, consumer)
        )
        self._incarnations[worker] = incarnation, now_s
        if before != incarnation:
            with suppress(nats.errors.Error):  # otherwise it expires
                await self.context.delete_consumer(
                    stream, subjects.command_consumer(worker, before)
                )

    async def withdraw(self, worker: str, names: Iterable[str]) -> None:
        """Delete stored commands to ``worker``, by the ids under which they were sent.

        For a command of an earlier Weaver, all commands of earlier Weavers are deleted; for one
        that the server never confirmed, all commands to the worker.
        """
        stream, task = subjects.command_stream(self._run), f"withdraw commands to {worker}"
        names = list(names)
        if self._unanswered.intersection(names):
            self._unanswered.difference_update(names)
            subject = subjects.command(self._run, worker)
            purge_all = partial(self.context.purge_stream, stream, subject=subject)
            await self._link.persist(task, purge_all)
            return
        sent_here = [self._places.pop(name, 0) for name in names]
        for place in filter(None, sent_here):
            await self._link.persist(task, partial(self._drop, stream, place))
        if not all(sent_here):
            subject, first = subjects.command(self._run, worker), self._first_place
            purge = partial(self.context.purge_stream, stream, seq=first, subject=subject)
            await self._link.persist(task, purge)

    async def send(self, commands: Iterable[Command], is_wanted: Callable[[str], bool]) -> None:
        """Store each command exactly once, however often it is sent; see :meth:`NatsBus.send`."""
        rest, places = iter(commands), dict[str, int]()

        async def attempt(batch: Sequence[Command]) -> None:
            wanted = {f"{c.id}:{c.epoch}": c for c in batch if is_wanted(c.id)}
            if len(self._unanswered) > _PLACES:  # their commands have long expired
                self._unanswered.clear()
            self._unanswered.update(wanted)
            messages = [
                Message(
                    subjects.command(self._run, c.worker, c.incarnation),
                    encode(c),
                    {_MESSAGE_ID: name},
                )
                for name, c in wanted.items()
            ]
            placed = await self._publish_all(messages)
            self._unanswered.difference_update(wanted)
            places.update(zip(wanted, placed, strict=True))

        while batch := list(itertools.islice(rest, AT_ONCE)):
            await self._link.persist("send commands", partial(attempt, batch))
        self._places.update(places)
        while len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]
        if self._first_place is None and places:
            self._first_place = min(places.values())

    async def _make_shared(
        self, name: str, *accepts: str, sizes: Sequence[int], message_bytes: int
    ) -> None:
        """Create a stream that workers share, with the first of the sizes that fits."""
        for most_bytes in sizes:
            share = (most_bytes if most_bytes > 0 else sizes[0]) // (_SHARE * message_bytes)
            if await self._make_stream(
                name,
                *accepts,
                max_bytes=most_bytes,
                max_msg_size=message_bytes,
                max_msgs_per_subject=share,
            ):
                return

    async def _make_stream(self, name: str, *accepts: str, **limits: int) -> bool:
        """Create or update a stream; return whether the server had space for it."""
        config = StreamConfig(
            name=name,
            subjects=list(accepts),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=self.copies,
            max_age=_MAX_AGE_S,
            duplicate_window=_DUPLICATES_S,
            max_consumers=MAX_WORKERS,  # the server's default is 1,000
            **limits,
        )

        async def make() -> bool:
            there = True
            try:
                try:
                    # Update first: to create an existing stream counts its size twice.
                    await self.context.update_stream(config)
                except nats.js.errors.NotFoundError:
                    there = False
                    await self.context.add_stream(config)
            except nats.js.errors.APIError as error:
                if error.err_code in _NO_PEERS and config.num_replicas != 1:
                    config.num_replicas = self.copies = 1
                    return await make()
                if error.err_code not in _NO_ROOM or not (there or limits.get("max_bytes", -1) > 0):
                    raise
                return False
            return True

        # An existing stream stays as it is if the server has reserved more than it has.
        return await self._link.persist(f"make stream {name}", make)

    async def _drop(self, stream: str, place: int) -> None:
        try:
            await self.context.delete_msg(stream, place)
        except nats.js.errors.APIError as error:
            if error.err_code != _NOT_THERE:
                raise

    async def publish(self, task: str, messages: Iterable[Message]) -> list[int]:
        """Publish in batches, each again if an ack is missing; return the sequence numbers."""
        rest, places = iter(messages), list[int]()
        while batch := list(itertools.islice(rest, AT_ONCE)):
            places += await self._link.persist(task, partial(self._publish_all, batch))
        return places

    async def _publish_all(self, messages: Sequence[Message]) -> list[int]:
        answers: list[asyncio.Future[PubAck]] = []
        try:
            async with asyncio.timeout(_ANSWERED_S):
                for to, data, headers in messages:
                    own = None if headers is None else dict(headers)
                    answers.append(await self.context.publish_async(to, data, headers=own))
                return [answer.seq for answer in await asyncio.gather(*answers)]
        finally:
            for answer in answers:
                answer.cancel()  # otherwise nats-py keeps it forever
