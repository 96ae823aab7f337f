"""The run's key-value bucket: the Weaver's state for its successor, and the epoch."""

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, KeyValueConfig, StorageType
from nats.js.kv import KeyValue

from torchloom_core.floor.errors import BrokerError, OvertakenError, SupersededError
from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.jetstream import AT_ONCE, REQUEST_TIMEOUT_S, JetStream, Message
from torchloom_core.wire import subjects

_log = logging.getLogger(__name__)

EPOCH_KEY = "epoch"
OWNER_KEY = "owner"
"""The Weaver that controls the run; empty if none does."""

_EPOCH = re.compile(rb"[0-9]{1,18}")
_HIGHEST_EPOCH = 1 << 53
"""The largest integer that JSON readers represent exactly."""
WHOLE_KEY = "whole"
"""The epoch whose entries are the whole state."""
READ_KEY = "read"
"""Written by a reader on a cluster; it has the state once it has read its own write."""

_EPOCH_ZERO_S = 1_767_225_600

_GONE = {"KV-Operation": "DEL"}
"""Headers of the marker that deletes an entry.

The marker stays until another epoch takes over. If it expired, or if the entry were purged, a
killed server would restore the entry: it stores which messages were deleted by a call, but not
which were replaced by a newer message of the same subject.
"""

_MARKS = {"KV-Operation", "Nats-Marker-Reason"}
"""Headers of a message that deletes an entry: ours, and the server's own."""

_READ_S = 10.0
"""How long the server keeps the consumer of a reader that was cut off."""


class _BehindError(nats.errors.Error):  # type: ignore[misc]  # nats-py has no types
    def __str__(self) -> str:
        return "the server has not stored all entries yet"


class StateBucket:
    """The key-value bucket of one run: the Weaver's state, by epoch; ``epoch`` is the own one."""

    def __init__(self, link: Connection, run: str, streams: JetStream) -> None:
        self._link = link
        self._run = run
        self._streams = streams
        self._js = streams.context
        self._kv: KeyValue | None = None
        self._whole_revision = 0
        self._copies = 1
        self.epoch = 0

    @property
    def waits_for_space(self) -> str:
        """What waits until the server has space; "" if nothing does."""
        return self._link.full

    async def make(self) -> None:
        """Create the bucket, unless it exists."""
        self._kv = await self._link.persist("make the key-value bucket", self._make_bucket)
        look = partial(self._js.stream_info, self._bucket._stream)
        found = await self._link.persist("look at the key-value bucket", look)
        self._copies = found.config.num_replicas or 1

    async def write(self, entries: Mapping[str, bytes | None]) -> None:
        """Store entries of this epoch's state, in their order; None deletes one.

        No other epoch's entries are touched: a Weaver that does not know yet that it is
        superseded cannot change its successor's. To write the same again changes nothing.
        """
        messages = (
            Message(self._subject(f"{self.epoch}.{key}"), b"", _GONE)
            if data is None
            else Message(self._subject(f"{self.epoch}.{key}"), data)
            for key, data in entries.items()
        )
        await self._streams.publish("store the state", messages)

    async def left(self) -> tuple[int, dict[str, bytes]]:
        """Return the last epoch that completed its take-over, 0 if none, and its state."""
        whole, self._whole_revision = await self._link.persist(
            f"read key {WHOLE_KEY}", lambda: self._entry(WHOLE_KEY)
        )
        epoch = _whole_number(WHOLE_KEY, whole)
        return epoch, await self.items(str(epoch)) if epoch else {}

    async def take_over(self) -> None:
        """Mark this epoch's entries as the whole state, and delete those of earlier epochs.

        SupersededError if a Weaver of a later epoch has taken over meanwhile; OvertakenError if one
        of an earlier epoch has, which ends once it detects this one.
        """
        epoch = self.epoch

        async def mark() -> None:
            try:
                await self._bucket.update(WHOLE_KEY, str(epoch).encode(), self._whole_revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                found, self._whole_revision = await self._entry(WHOLE_KEY)
                whole = _whole_number(WHOLE_KEY, found)
                if whole != epoch:  # otherwise it is our own write, whose answer was lost
                    taken = SupersededError if whole > epoch else OvertakenError
                    raise taken(f"another Weaver took over run {self._run}") from None

        await self._link.persist("take over the state", mark)
        keys = await self._link.persist("list the keys", self._keys)
        found = {key.partition(".")[0] for key in keys if "." in key}
        # Not those of later epochs: one that was cut off meanwhile may have a successor already.
        for other in sorted(one for one in found if one.isdigit() and int(one) < epoch):
            subject = self._subject(f"{other}.>")
            await self._link.persist(
                f"drop the state of epoch {other}",
                partial(self._js.purge_stream, self._bucket._stream, subject=subject),
            )

    async def get(self, key: str) -> bytes | None:
        """Return the value of ``key``, or None."""
        return (await self._link.persist(f"read key {key}", lambda: self._entry(key)))[0]

    async def put(self, key: str, value: bytes) -> None:
        """Store the value of ``key``."""
        await self._link.persist(f"write key {key}", lambda: self._bucket.put(key, value))

    async def change(
        self, key: str, change: Callable[[bytes | None], Awaitable[bytes | None]]
    ) -> None:
        """Replace the value of ``key`` by ``change(value)``, if not None; no write is lost."""

        async def swap() -> None:
            while True:
                value, revision = await self._entry(key)
                if (fresh := await change(value)) is None:
                    return
                with suppress(nats.js.errors.KeyWrongLastSequenceError):
                    await self._bucket.update(key, fresh, revision)
                    return

        await self._link.persist(f"change key {key}", swap)

    async def items(self, prefix: str) -> dict[str, bytes]:
        """Return the entries below ``prefix``, by the rest of their keys."""
        return await self._link.persist(f"read keys {prefix}.>", lambda: self._items(prefix))

    async def claim_epoch(self, above: int = 0) -> int:
        """Raise the epoch, lost if invalid, by one or above ``above``, atomically; return it."""
        claim = partial(self._claim_epoch, above)
        self.epoch = await self._link.persist("claim the epoch", claim)
        return self.epoch

    async def newest_epoch(self) -> int:
        """Return the epoch that was claimed last, 0 if there is none."""
        return _epoch(await self.get(EPOCH_KEY)) or 0

    @property
    def _bucket(self) -> KeyValue:
        if self._kv is None:
            raise BrokerError("the bus is not open")
        return self._kv

    async def _make_bucket(self) -> KeyValue:
        name = subjects.bucket(self._run)
        try:
            return await self._js.key_value(name)
        except nats.js.errors.NotFoundError:
            return await self._js.create_key_value(
                KeyValueConfig(
                    bucket=name,
                    history=1,
                    storage=StorageType.FILE,
                    replicas=self._streams.copies,
                    direct=self._streams.copies == 1,  # of several copies one may be behind
                )
            )

    def _subject(self, key: str) -> str:
        return f"$KV.{subjects.bucket(self._run)}.{key}"

    async def _entry(self, key: str) -> tuple[bytes | None, int]:
        """Return a key's value, or None, and its revision."""
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
        """Return the newest message of each of the bucket's keys, including deletions.

        On a cluster any server may answer, also one that is a moment behind the others: what it
        has is everything only if it has the write that was made here before.
        """
        if self._copies == 1:
            return await self._on_a_server([self._subject(keys)], headers_only)
        place = await self._bucket.put(READ_KEY, b"")
        mark = self._subject(READ_KEY)
        filters = [self._subject(keys), mark] if keys != ">" else [self._subject(keys)]
        found = await self._on_a_server(filters, headers_only)
        if not any(one.subject == mark and one.metadata.sequence.stream >= place for one in found):
            raise _BehindError  # tried again, perhaps on another one
        return [one for one in found if one.subject != mark]

    async def _on_a_server(self, filters: list[str], headers_only: bool) -> list[Msg]:
        """Return the newest message of each subject, as one server of the bucket has them.

        The server states their number before it sends them. nats-py's own watch requests the
        number afterwards; if that answer comes first, a full bucket looks empty.
        """
        stream = self._bucket._stream
        consumer = await self._js.add_consumer(
            stream,
            ConsumerConfig(
                filter_subjects=filters,
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
                found += await reader.fetch(min(left, AT_ONCE), timeout=REQUEST_TIMEOUT_S)
            return found
        finally:
            await reader.unsubscribe()

    async def _claim_epoch(self, above: int) -> int:
        while True:
            value, last = await self._entry(EPOCH_KEY)
            newest = _epoch(value)
            epoch = max(above + 1, epoch_by_the_clock() if newest is None else newest + 1)
            try:
                await self._bucket.update(EPOCH_KEY, str(epoch).encode(), last=last)
            except nats.js.errors.KeyWrongLastSequenceError:
                continue
            return epoch


def epoch_by_the_clock() -> int:
    """Return seconds since the start of 2026: above all epochs of a lost state, as workers need."""
    epoch = int(time.time()) - _EPOCH_ZERO_S
    if epoch <= 0:
        _log.warning("this host's clock is before 2026: set it, or workers reject later Weavers")
    return epoch


def _epoch(data: bytes | None) -> int | None:
    """Return the epoch in the key, or None; an invalid value is logged."""
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
