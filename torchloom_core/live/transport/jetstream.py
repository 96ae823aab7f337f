"""The run's streams, and writes that survive a broker restart."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import (
    PubAck,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, MAX_REPORT_BYTES
from torchloom_core.wire.limits import MAX_WORKERS

REQUEST_TIMEOUT_S = 2
_MAX_AGE_S = 7 * 24 * 3600
_DUPLICATES_S = 600

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
_NO_LEADER = 10008

AT_ONCE = 2000
_ANSWERED_S = 10.0


class Message(NamedTuple):
    """A message to store in a stream."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None


class _Context(JetStreamContext):  # type: ignore[misc]  # nats-py has no types
    """A context whose ``publish_async`` fails if the server refuses the message.

    nats-py passes the server's error to the client's callback, and its future is never done.
    """

    async def _handle_async_reply(self, msg: Msg) -> None:
        try:
            await super()._handle_async_reply(msg)
        except nats.js.errors.APIError as error:
            answer = self._publish_async_futures.get(msg.subject.rpartition(".")[2])
            if answer is not None and not answer.done():
                answer.set_exception(error)


class JetStream:
    """The streams of one run, each stored by ``copies`` servers.

    ``servers``: how many the cluster has, if that is known; otherwise as many as are seen.
    """

    def __init__(self, link: Connection, run: str, servers: int = 0) -> None:
        self._link = link
        self._run = run
        self.context: JetStreamContext = _Context(link.client, timeout=REQUEST_TIMEOUT_S)
        self._awaits = bool(servers)
        servers = servers or len(link.client._server_info.get("connect_urls") or ())
        self.copies = _COPIES if servers >= _COPIES else 1

    async def check(self, url: str) -> None:
        """Raise BrokerError unless JetStream is on for our account, and we may use its API."""

        async def look() -> None:
            try:
                await self.context.account_info()
            except nats.js.errors.ServiceUnavailableError as error:
                if self._awaits or error.err_code == _NO_LEADER:
                    raise  # tried again: a cluster elects a leader, or begins to serve
                raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None
            except nats.js.errors.Error as error:
                raise BrokerError(f"{url}: need a server with JetStream on: {error}") from None

        await self._link.persist_if_allowed("look for JetStream", look)

    async def make(self) -> None:
        """Create the streams, or update their configuration."""
        run = self._run
        await self._link.persist("delete the stream of commands", self._drop_commands)
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

    async def _make_shared(
        self, name: str, *accepts: str, sizes: Sequence[int], message_bytes: int
    ) -> None:
        """Create a stream that workers share, with the first of the sizes that fits."""
        for most_bytes in sizes:
            share = (most_bytes if most_bytes > 0 else sizes[0]) // (_SHARE * message_bytes)
            if await self.make_stream(
                name,
                *accepts,
                max_bytes=most_bytes,
                max_msg_size=message_bytes,
                max_msgs_per_subject=share,
            ):
                return

    async def make_stream(
        self, name: str, *accepts: str, max_age: float = _MAX_AGE_S, **limits: int
    ) -> bool:
        """Create or update a stream; return whether the server had space for it."""
        config = StreamConfig(
            name=name,
            subjects=list(accepts),
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=self.copies,
            max_age=max_age,
            duplicate_window=_DUPLICATES_S,
            max_consumers=MAX_WORKERS,  # the server's default is 1,000
            **limits,
        )

        async def make() -> bool:
            there = True
            try:
                try:
                    if not self._awaits:  # a server that has just started sees too few others
                        stored = (await self.context.stream_info(name)).config.num_replicas or 1
                        config.num_replicas = max(self.copies, stored)
                    # Update first: to create an existing stream counts its size twice.
                    await self.context.update_stream(config)
                except nats.js.errors.NotFoundError:
                    there = False
                    await self.context.add_stream(config)
            except nats.js.errors.APIError as error:
                if error.err_code in _NO_PEERS and self._awaits:
                    raise  # tried again: the other servers are starting
                if error.err_code in _NO_PEERS and config.num_replicas != 1:
                    config.num_replicas = self.copies = 1
                    return await make()
                if error.err_code not in _NO_ROOM or not (there or limits.get("max_bytes", -1) > 0):
                    raise
                return False
            return True

        # An existing stream stays as it is if the server has reserved more than it has.
        return await self._link.persist(f"make stream {name}", make)

    async def _drop_commands(self) -> None:
        """Delete what an earlier version made; the commands in it are in the bucket, too."""
        with suppress(nats.js.errors.NotFoundError):
            await self.context.delete_stream(f"TL_CMD_{self._run}")

    async def drop_reports(self, worker: str) -> None:
        """Delete what is stored of a worker's events, acks and large events."""
        run = self._run
        small, large = subjects.report_stream(run), subjects.bulk_stream(run)
        for stream, subject in (
            (small, subjects.event(run, worker)),
            (small, subjects.ack(run, worker)),
            (large, subjects.bulk(run, worker)),
        ):
            purge = partial(self.context.purge_stream, stream, subject=subject)
            await self._link.persist(f"drop the reports of {worker}", purge)

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
