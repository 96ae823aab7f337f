"""The run's streams and consumers, and writes that survive a broker restart."""

import asyncio
import itertools
import logging
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

from torchloom_core.errors import BrokerError
from torchloom_core.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, MAX_REPORT_BYTES
from torchloom_core.wire.limits import MAX_WORKERS

_log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 2
_KEPT_S = 7 * 24 * 3600
_DUPLICATES_S = 600
_COMMAND_WAITS_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How soon a command that is not answered is delivered again, the last again and again.

The first is how long the sidecar that takes a killed one's place waits for what that one had
pulled; the later ones are for trainers that take long over a step, or hang.
"""

_CONSUMER_IDLE_S = 3600.0
_CONSUMER_SURE_S = _CONSUMER_IDLE_S / 2
"""How long a consumer that was made here is taken to be there still."""

_REPORT_BYTES = (1 << 30, 1 << 28, 1 << 26, 1 << 24, -1)
_BULK_BYTES = _REPORT_BYTES[1:]
"""Of all reports, and of all large events: of more the oldest go. A server sets the room aside, and
has less on a disk that is nearly full; it always makes a stream that is not bounded, which then
ends with the disk."""
_SHARE = 16
"""One worker has this part of a stream on each of its subjects: when it sends more, its own oldest
messages go, and nobody else's."""
_NO_ROOM = frozenset({10002, 10047, 10122})
"""An account's limit, the server's, and the account's for one stream."""
_COPIES = 3
"""Of each stream on a cluster of so many servers or more: any one of them may go."""
_NO_PEERS = frozenset({10005, 10074})
"""Too few of the cluster's servers have JetStream on."""
_MESSAGE_ID = "Nats-Msg-Id"

_NOT_THERE = 10057
_PLACES = 100_000
"""Of how many commands it is known where they are on file, to take them back one by one."""

AT_ONCE = 2000
_ANSWERED_S = 10.0


class Message(NamedTuple):
    """What is put on file in a stream."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class JetStream:
    """The streams that JetStream keeps for one run: commands, and reports.

    Attributes
    ----------
    context : JetStreamContext
        nats-py's.
    copies : int
        On how many servers each stream is kept.
    """

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
        """Raise BrokerError unless the server has JetStream on for us, and we may ask."""

        async def look() -> None:
            try:
                await self.context.account_info()
            except nats.js.errors.Error as error:
                raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None

        await self._link.persist_if_allowed("look for JetStream", look)

    async def make(self) -> None:
        """Make the streams, or bring them up to date."""
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
        """Make the durable consumer from which a life of ``worker`` pulls its commands.

        That of the life before goes. One that nobody pulls from for an hour goes by itself, and
        comes back, and with it all commands of that life, when the worker does.
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
            with suppress(nats.errors.Error):  # else it goes by itself
                await self.context.delete_consumer(
                    stream, subjects.command_consumer(worker, before)
                )

    async def withdraw(self, worker: str, names: Iterable[str]) -> None:
        """Take commands to ``worker`` off file, by the ids under which they were sent.

        One that was not sent from here an earlier Weaver sent: all that any of those sent goes. Of
        one that the server never answered for nobody knows whether it is there: all goes.
        """
        stream, what = subjects.command_stream(self._run), f"recall commands to {worker}"
        names = list(names)
        if self._unanswered.intersection(names):
            self._unanswered.difference_update(names)
            subject = subjects.command(self._run, worker)
            purge_all = partial(self.context.purge_stream, stream, subject=subject)
            await self._link.persist(what, purge_all)
            return
        sent_here = [self._places.pop(name, 0) for name in names]
        for place in filter(None, sent_here):
            await self._link.persist(what, partial(self._drop, stream, place))
        if not all(sent_here):
            subject, first = subjects.command(self._run, worker), self._first_place
            purge = partial(self.context.purge_stream, stream, seq=first, subject=subject)
            await self._link.persist(what, purge)

    async def send(
        self, commands: Sequence[tuple[str, bytes, str]], is_wanted: Callable[[str], bool]
    ) -> None:
        """Put ``(subject, data, id)`` on file in a stream, each exactly once however often.

        Each attempt leaves those out of which ``is_wanted(id)`` is false by then.
        """
        rest, places = iter(commands), dict[str, int]()

        async def attempt(batch: Sequence[tuple[str, bytes, str]]) -> None:
            wanted = {name: (to, data) for to, data, name in batch if is_wanted(name)}
            if len(self._unanswered) > _PLACES:  # of commands whose deadlines are long over
                self._unanswered.clear()
            self._unanswered.update(wanted)
            messages = [Message(*what, {_MESSAGE_ID: name}) for name, what in wanted.items()]
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
        """Make a stream that workers share, of the first of the sizes for which there is room."""
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
        """Make a stream, or bring it up to date; return whether the server had room for it."""
        config = StreamConfig(
            name=name,
            subjects=list(accepts),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=self.copies,
            max_age=_KEPT_S,
            duplicate_window=_DUPLICATES_S,
            max_consumers=MAX_WORKERS,  # the server sets 1,000 by itself
            **limits,
        )

        async def make() -> bool:
            there = True
            try:
                try:
                    # First, since one that is there counts twice where it is to be made.
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

        # One that is there stays as it is where the server has set aside more than it has.
        return await self._link.persist(f"make stream {name}", make)

    async def _drop(self, stream: str, place: int) -> None:
        try:
            await self.context.delete_msg(stream, place)
        except nats.js.errors.APIError as error:
            if error.err_code != _NOT_THERE:
                raise

    async def publish(self, what: str, messages: Iterable[Message]) -> list[int]:
        """Publish into a stream, many before the first is answered; all again if one is not.

        Returns the place of each in the stream.
        """
        rest, places = iter(messages), list[int]()
        while batch := list(itertools.islice(rest, AT_ONCE)):
            places += await self._link.persist(what, partial(self._publish_all, batch))
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
                answer.cancel()  # one that is waited for no more would hold its place for ever
