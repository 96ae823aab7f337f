"""The run's streams, consumers and key-value bucket, and writes that survive a broker restart."""

import asyncio
import time
import uuid

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    KeyValueConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.kv import KeyValue

from torchloom_core import subjects
from torchloom_core.bus.link import Link
from torchloom_core.errors import BrokerError

EPOCH_KEY = "epoch"
_EPOCH_ZERO_S = 1_767_225_600

_REQUEST_TIMEOUT_S = 2
_KEPT_S = 7 * 24 * 3600
_DUPLICATES_S = 600
_ACK_WAIT_S = 30
_COMMAND_ACK_WAIT_S = 5
"""How soon the sidecar that takes a killed one's place gets the commands that one had pulled."""

_REPORTS_IN_FLIGHT = 4096
_WEAVER = "weaver"
_NAME_IN_USE = 10058
_MESSAGE_ID = "Nats-Msg-Id"


class Store:
    """What JetStream keeps for one run."""

    def __init__(self, link: Link, run: str) -> None:
        self._link = link
        self._run = run
        self._js: JetStreamContext = link.client.jetstream(timeout=_REQUEST_TIMEOUT_S)
        self._kv: KeyValue | None = None
        self._writing = asyncio.Lock()
        self._writes = 0
        self._author = uuid.uuid4().hex

    async def check(self, url: str) -> None:
        """Raise BrokerError unless the server has JetStream on for us."""
        try:
            await self._js.account_info()
        except nats.errors.Error as error:
            raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None

    async def make(self, reports_to: str) -> None:
        """Make streams and bucket, or bring them up to date; reports go to ``reports_to``."""
        run = self._run
        await self._make_stream(subjects.command_stream(run), subjects.command(run))
        await self._make_stream(subjects.report_stream(run), subjects.ack(run), subjects.event(run))
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
        await self._link.persist(
            "make the Weaver's consumer",
            lambda: self._js.add_consumer(subjects.report_stream(run), reports),
        )

    async def add_worker(self, worker: str) -> None:
        """Make the durable consumer from which ``worker`` pulls its commands."""
        consumer = ConsumerConfig(
            durable_name=worker,
            filter_subject=subjects.command(self._run, worker),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_COMMAND_ACK_WAIT_S,
        )
        await self._link.persist(
            f"make the consumer of {worker}",
            lambda: self._js.add_consumer(subjects.command_stream(self._run), consumer),
        )

    async def recall(self, worker: str) -> None:
        """Drop the commands on file for ``worker``."""
        subject = subjects.command(self._run, worker)
        await self._link.persist(
            f"recall commands to {worker}",
            lambda: self._js.purge_stream(subjects.command_stream(self._run), subject=subject),
        )

    async def publish(self, what: str, subject: str, data: bytes, message_id: str) -> None:
        """Publish into a stream, exactly once however often it has to be repeated."""
        headers = {_MESSAGE_ID: message_id}
        await self._link.persist(what, lambda: self._js.publish(subject, data, headers=headers))

    async def put(self, key: str, data: bytes) -> None:
        """Set ``key``; writes land in the order in which they were asked for."""
        async with self._writing:
            self._writes += 1
            subject = f"$KV.{subjects.bucket(self._run)}.{key}"
            await self.publish(f"set key {key}", subject, data, f"{self._author}-{self._writes}")

    async def get(self, key: str) -> bytes | None:
        """Return the value of ``key``, None where there is none."""
        return await self._link.persist(f"read key {key}", lambda: self._get(key))

    async def items(self, prefix: str) -> dict[str, bytes]:
        """Return key and value of all keys below ``prefix``, a number of whole tokens."""
        return await self._link.persist(f"read keys {prefix}.>", lambda: self._items(prefix))

    async def claim_epoch(self) -> int:
        """Raise the epoch by one, against all others who try, and return it."""
        return await self._link.persist("claim the epoch", self._claim_epoch)

    async def epoch(self) -> int:
        """Return the epoch that was claimed last, 0 before the first."""
        return _epoch(await self.get(EPOCH_KEY))

    @property
    def _bucket(self) -> KeyValue:
        if self._kv is None:
            raise BrokerError("the bus is not open")
        return self._kv

    async def _make_stream(self, name: str, *heard: str) -> None:
        config = StreamConfig(
            name=name,
            subjects=list(heard),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            max_age=_KEPT_S,
            duplicate_window=_DUPLICATES_S,
        )

        async def make() -> None:
            try:
                await self._js.add_stream(config)
            except nats.js.errors.BadRequestError as error:
                if error.err_code != _NAME_IN_USE:
                    raise
                await self._js.update_stream(config)

        await self._link.persist(f"make stream {name}", make)

    async def _make_bucket(self) -> KeyValue:
        name = subjects.bucket(self._run)
        try:
            return await self._js.create_key_value(
                KeyValueConfig(bucket=name, history=1, storage=StorageType.FILE, direct=True)
            )
        except nats.js.errors.BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            return await self._js.key_value(name)

    async def _get(self, key: str) -> bytes | None:
        try:
            value: bytes | None = (await self._bucket.get(key)).value
        except nats.js.errors.KeyNotFoundError:
            return None
        return value

    async def _items(self, prefix: str) -> dict[str, bytes]:
        watcher = await self._bucket.watch(f"{prefix}.>", ignore_deletes=True)
        try:
            found: dict[str, bytes] = {}
            while (entry := await watcher.updates(_REQUEST_TIMEOUT_S)) is not None:
                found[entry.key] = entry.value
            return found
        finally:
            await watcher.stop()

    async def _claim_epoch(self) -> int:
        while True:
            try:
                entry = await self._bucket.get(EPOCH_KEY)
                last, epoch = entry.revision, _epoch(entry.value) + 1
            except nats.js.errors.KeyDeletedError as error:
                last, epoch = error.entry.revision, _first_epoch()
            except nats.js.errors.KeyNotFoundError:
                last, epoch = 0, _first_epoch()
            try:
                await self._bucket.update(EPOCH_KEY, str(epoch).encode(), last=last)
            except nats.js.errors.KeyWrongLastSequenceError:
                continue
            return epoch


def _first_epoch() -> int:
    """Return an epoch above every one of a state that was lost: seconds since 2026 began.

    Workers that obeyed the lost Weaver would take a smaller one for a Weaver of the past.
    """
    return int(time.time()) - _EPOCH_ZERO_S


def _epoch(data: bytes | None) -> int:
    try:
        return int(data or b"0")
    except ValueError:
        raise BrokerError(f"key {EPOCH_KEY}: need a whole number, was {data!r}") from None
