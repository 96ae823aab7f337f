"""The run's streams, consumers and key-value bucket, and writes that survive a broker restart."""

import asyncio
import itertools
import logging
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    KeyValueConfig,
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.kv import KeyValue

from torchloom_core.errors import BrokerError, OvertakenError, SupersededError
from torchloom_core.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.limits import MAX_WORKERS

_log = logging.getLogger(__name__)

EPOCH_KEY = "epoch"
_EPOCH = re.compile(rb"[0-9]{1,18}")
_HIGHEST_EPOCH = 1 << 53
"""What a reader of JSON can be sure to keep whole."""
WHOLE_KEY = "whole"
"""Holds the epoch whose entries are all of the state."""

_EPOCH_ZERO_S = 1_767_225_600

_REQUEST_TIMEOUT_S = 2
_KEPT_S = 7 * 24 * 3600
_DUPLICATES_S = 600
_ACK_WAIT_S = 30
_COMMAND_WAITS_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""How soon a command that is not answered is delivered again, the last again and again.

The first is how long the sidecar that takes a killed one's place waits for what that one had
pulled; the later ones are for trainers that take long over a step, or hang.
"""

_CONSUMER_IDLE_S = 3600.0
_CONSUMER_SURE_S = _CONSUMER_IDLE_S / 2
"""How long a consumer that was made here is taken to be there still."""

_REPORTS_IN_FLIGHT = 4096
_REPORTS_KEPT = 20_000
"""Of one worker's events, and of its acks: of more the oldest go."""
_REPORT_BYTES = (1 << 30, 1 << 28, 1 << 26, 1 << 24, -1)
"""Of all reports: of more the oldest go. A server sets the room aside, and has less on a disk that
is nearly full; it always makes a stream that is not bounded, which then ends with the disk."""
_NO_ROOM = frozenset({10002, 10047, 10122})
"""An account's limit, the server's, and the account's for one stream."""
_WEAVER = "weaver"
_MESSAGE_ID = "Nats-Msg-Id"
_GONE = {"KV-Operation": "DEL"}
"""Headers of the mark that takes an entry away.

The mark stays until another epoch takes over. Were it to expire, or were the entry purged, a
server that is killed would bring the entry back: it writes down which messages were deleted by
a call, and not which a newer one of the same subject had replaced.
"""

_NOT_THERE = 10057
_PLACES = 100_000
"""Of how many commands it is known where they are on file, to take them back one by one."""

_MARKS = {"KV-Operation", "Nats-Marker-Reason"}
"""Headers of a message that takes an entry away: ours, and the server's own."""

_AT_ONCE = 2000
_READ_S = 10.0
"""How long a reader that was cut off stays with the server."""
_ANSWERED_S = 10.0


class _Message(NamedTuple):
    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class Left(NamedTuple):
    """The state that the last Weaver left: its epoch, 0 if there was none, and its entries."""

    epoch: int
    entries: dict[str, bytes]


class JetStream:
    """What JetStream keeps for one run.

    Attributes
    ----------
    others_there : bool
        Whether another Weaver was being sent the reports at :meth:`make`.
    """

    def __init__(self, link: Connection, run: str) -> None:
        self._link = link
        self._run = run
        self._js: JetStreamContext = link.client.jetstream(timeout=_REQUEST_TIMEOUT_S)
        self._kv: KeyValue | None = None
        self.others_there = False
        self._whole_revision = 0
        self._places: dict[str, int] = {}
        self._first_place: int | None = None
        self._lives: dict[str, tuple[int, float]] = {}

    async def check(self, url: str) -> None:
        """Raise BrokerError unless the server has JetStream on for us, and we may ask."""

        async def look() -> None:
            try:
                await self._js.account_info()
            except nats.js.errors.Error as error:
                raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None

        await self._link.persist_if_allowed("look for JetStream", look)

    async def make(self, reports_to: str) -> None:
        """Make streams and bucket, or bring them up to date; reports go to ``reports_to``."""
        run = self._run
        await self._make_stream(subjects.command_stream(run), subjects.command(run))
        heard = subjects.ack(run), subjects.event(run)
        await self._make_stream(
            subjects.report_stream(run), *heard, each=_REPORTS_KEPT, in_all_bytes=_REPORT_BYTES
        )
        self._kv = await self._link.persist("make the key-value bucket", self._make_bucket)
        # A push consumer with a fixed subject: the quickest, nothing to poll, and a new Weaver
        # takes over at once from one that hangs.
        reports = ConsumerConfig(
            durable_name=_WEAVER,
            deliver_subject=reports_to,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT_S,
            max_ack_pending=_REPORTS_IN_FLIGHT,
        )
        consumer = await self._link.persist(
            "make the Weaver's consumer",
            lambda: self._js.add_consumer(subjects.report_stream(run), reports),
        )
        self.others_there = bool(consumer.push_bound)

    async def add_worker(self, worker: str, incarnation: int) -> None:
        """Make the durable consumer from which a life of ``worker`` pulls its commands.

        That of the life before goes. One that nobody pulls from for an hour goes by itself, and
        comes back, and with it all commands of that life, when the worker does.
        """
        before, made_s = self._lives.get(worker, (incarnation, -math.inf))
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
            f"make the consumer of {worker}", lambda: self._js.add_consumer(stream, consumer)
        )
        self._lives[worker] = incarnation, now_s
        if before != incarnation:
            with suppress(nats.errors.Error):  # else it goes by itself
                await self._js.delete_consumer(stream, subjects.command_consumer(worker, before))

    async def recall(self, worker: str, names: Iterable[str]) -> None:
        """Take commands to ``worker`` off file, by the ids under which they were sent.

        One that was not sent from here an earlier Weaver sent: all that any of those sent goes.
        """
        stream, what = subjects.command_stream(self._run), f"recall commands to {worker}"
        sent_here = [self._places.pop(name, 0) for name in names]
        for place in filter(None, sent_here):
            await self._link.persist(what, partial(self._drop, stream, place))
        if not all(sent_here):
            subject, first = subjects.command(self._run, worker), self._first_place
            purge = partial(self._js.purge_stream, stream, seq=first, subject=subject)
            await self._link.persist(what, purge)

    async def send(self, commands: Sequence[tuple[str, bytes, str]]) -> None:
        """Put ``(subject, data, id)`` on file in a stream, each exactly once however often."""
        messages = [_Message(to, data, {_MESSAGE_ID: name}) for to, data, name in commands]
        places = await self._publish("send commands", messages)
        for (_, _, name), place in zip(commands, places, strict=True):
            self._places[name] = place
        while len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]
        if self._first_place is None and places:
            self._first_place = min(places)

    async def write(self, epoch: int, entries: Mapping[str, bytes | None]) -> None:
        """Store entries of the epoch's state, in their order; None takes one away.

        No other epoch's entries are touched: a Weaver that was superseded and does not know it
        yet writes beside its successor's. To write the same again changes nothing.
        """
        messages = (
            _Message(self._subject(f"{epoch}.{key}"), b"", _GONE)
            if data is None
            else _Message(self._subject(f"{epoch}.{key}"), data)
            for key, data in entries.items()
        )
        await self._publish("store the state", messages)

    async def left(self) -> Left:
        """Return the state of the last epoch that had taken over all of it."""
        whole, self._whole_revision = await self._link.persist(
            f"read key {WHOLE_KEY}", lambda: self._entry(WHOLE_KEY)
        )
        epoch = _whole_number(WHOLE_KEY, whole)
        return Left(epoch, await self.items(str(epoch)) if epoch else {})

    async def take_over(self, epoch: int) -> None:
        """Say that the epoch's entries are all of the state, and drop those of all others.

        Raises
        ------
        SupersededError
            If a Weaver of a later epoch has taken over meanwhile.
        OvertakenError
            If one of an earlier epoch has, which ends once it hears of this one.
        """

        async def say() -> None:
            try:
                await self._bucket.update(WHOLE_KEY, str(epoch).encode(), self._whole_revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                found, self._whole_revision = await self._entry(WHOLE_KEY)
                whole = _whole_number(WHOLE_KEY, found)
                if whole != epoch:  # else: our own, its answer was lost
                    taken = SupersededError if whole > epoch else OvertakenError
                    raise taken(f"another Weaver took over run {self._run}") from None

        await self._link.persist("take over the state", say)
        keys = await self._link.persist("list the keys", self._keys)
        first = {key.partition(".")[0] for key in keys if "." in key}
        for other in sorted(first - {str(epoch)}):
            subject = self._subject(f"{other}.>")
            await self._link.persist(
                f"drop the state of epoch {other}",
                partial(self._js.purge_stream, self._bucket._stream, subject=subject),
            )

    async def get(self, key: str) -> bytes | None:
        """Return the value of ``key``, None where there is none."""
        return (await self._link.persist(f"read key {key}", lambda: self._entry(key)))[0]

    async def items(self, prefix: str) -> dict[str, bytes]:
        """Return the entries below ``prefix``, by what follows it in their keys."""
        return await self._link.persist(f"read keys {prefix}.>", lambda: self._items(prefix))

    async def claim_epoch(self, above: int = 0) -> int:
        """Raise the epoch by one, or past ``above``, against all others who try; return it.

        A key that is no epoch counts as lost.
        """
        return await self._link.persist("claim the epoch", lambda: self._claim_epoch(above))

    async def epoch(self) -> int:
        """Return the epoch that was claimed last, 0 if there is none."""
        return _epoch(await self.get(EPOCH_KEY)) or 0

    @property
    def _bucket(self) -> KeyValue:
        if self._kv is None:
            raise BrokerError("the bus is not open")
        return self._kv

    async def _make_stream(
        self, name: str, *heard: str, each: int = -1, in_all_bytes: Sequence[int] = (-1,)
    ) -> None:
        """Make a stream of the first of the sizes for which the server has room."""
        most_bytes, *less = in_all_bytes
        config = StreamConfig(
            name=name,
            subjects=list(heard),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=_KEPT_S,
            max_msgs_per_subject=each,
            max_bytes=most_bytes,
            duplicate_window=_DUPLICATES_S,
            max_consumers=MAX_WORKERS,  # the server sets 1,000 by itself
        )

        async def make() -> bool:
            there = True
            try:
                try:
                    # First, since one that is there counts twice where it is to be made.
                    await self._js.update_stream(config)
                except nats.js.errors.NotFoundError:
                    there = False
                    await self._js.add_stream(config)
            except nats.js.errors.APIError as error:
                if error.err_code not in _NO_ROOM or not (there or less):
                    raise
                return False
            return True

        # One that is there stays as it is where the server has set aside more than it has.
        if not await self._link.persist(f"make stream {name}", make) and less:
            await self._make_stream(name, *heard, each=each, in_all_bytes=less)

    async def _make_bucket(self) -> KeyValue:
        name = subjects.bucket(self._run)
        try:
            return await self._js.key_value(name)
        except nats.js.errors.NotFoundError:
            return await self._js.create_key_value(
                KeyValueConfig(bucket=name, history=1, storage=StorageType.FILE, direct=True)
            )

    def _subject(self, key: str) -> str:
        return f"$KV.{subjects.bucket(self._run)}.{key}"

    async def _drop(self, stream: str, place: int) -> None:
        try:
            await self._js.delete_msg(stream, place)
        except nats.js.errors.APIError as error:
            if error.err_code != _NOT_THERE:
                raise

    async def _publish(self, what: str, messages: Iterable[_Message]) -> list[int]:
        """Publish into a stream, many before the first is answered; all again if one is not.

        Returns the place of each in the stream.
        """
        rest, places = iter(messages), list[int]()
        while batch := list(itertools.islice(rest, _AT_ONCE)):
            places += await self._link.persist(what, partial(self._publish_all, batch))
        return places

    async def _publish_all(self, messages: Sequence[_Message]) -> list[int]:
        answers: list[asyncio.Future[PubAck]] = []
        try:
            async with asyncio.timeout(_ANSWERED_S):
                for to, data, headers in messages:
                    own = None if headers is None else dict(headers)
                    answers.append(await self._js.publish_async(to, data, headers=own))
                return [answer.seq for answer in await asyncio.gather(*answers)]
        finally:
            for answer in answers:
                answer.cancel()  # one that is waited for no more would hold its place for ever

    async def _entry(self, key: str) -> tuple[bytes | None, int]:
        """Return a key's value, None where there is none, and its revision."""
        try:
            entry = await self._bucket.get(key)
        except nats.js.errors.KeyDeletedError as error:
            return None, error.entry.revision
        except nats.js.errors.KeyNotFoundError:
            return None, 0
        return entry.value, entry.revision

    async def _items(self, prefix: str) -> dict[str, bytes]:
        entries = await self._newest(f"{prefix}.>")
        own = self._subject(f"{prefix}.")
        return {
            entry.subject.removeprefix(own): entry.data
            for entry in entries
            if not (entry.headers or {}).keys() & _MARKS
        }

    async def _keys(self) -> list[str]:
        own = self._subject("")
        return [
            entry.subject.removeprefix(own) for entry in await self._newest(">", headers_only=True)
        ]

    async def _newest(self, keys: str, *, headers_only: bool = False) -> list[Msg]:
        """Return the newest message of each of the bucket's keys, those that take one away too.

        How many there are is said before the first is sent. nats-py's watch asks afterwards, and
        where the answer overtakes what was sent it takes a full bucket for an empty one.
        """
        stream = self._bucket._stream
        consumer = await self._js.add_consumer(
            stream,
            ConsumerConfig(
                filter_subject=self._subject(keys),
                deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
                ack_policy=AckPolicy.NONE,
                headers_only=headers_only,
                mem_storage=True,
                inactive_threshold=_READ_S,
            ),
        )
        reader = await self._js.pull_subscribe_bind(consumer.name, stream)
        try:
            found: list[Msg] = []
            while (left := consumer.num_pending - len(found)) > 0:
                found += await reader.fetch(min(left, _AT_ONCE), timeout=_REQUEST_TIMEOUT_S)
            return found
        finally:
            await reader.unsubscribe()

    async def _claim_epoch(self, above: int) -> int:
        while True:
            value, last = await self._entry(EPOCH_KEY)
            newest = _epoch(value)
            epoch = max(above + 1, _first_epoch() if newest is None else newest + 1)
            try:
                await self._bucket.update(EPOCH_KEY, str(epoch).encode(), last=last)
            except nats.js.errors.KeyWrongLastSequenceError:
                continue
            return epoch


def _first_epoch() -> int:
    """Return an epoch above every one of a state that was lost: seconds since 2026 began.

    Workers that obeyed the lost Weaver would take a smaller one for a Weaver of the past.
    """
    epoch = int(time.time()) - _EPOCH_ZERO_S
    if epoch <= 0:
        _log.warning("this host's clock is before 2026: set it, or no later Weaver is believed")
    return epoch


def _epoch(data: bytes | None) -> int | None:
    """Return the epoch in the key, None where there is none, which is told if it is something."""
    if data is None:
        return None
    if _EPOCH.fullmatch(data) and 0 < int(data) <= _HIGHEST_EPOCH:
        return int(data)
    _log.warning("key %s: need an epoch, was %.80r; it counts as lost", EPOCH_KEY, data)
    return None


def _whole_number(key: str, data: bytes | None) -> int:
    try:
        return int(data or b"0")
    except ValueError:
        raise BrokerError(f"key {key}: need a whole number, was {data!r:.80}") from None
