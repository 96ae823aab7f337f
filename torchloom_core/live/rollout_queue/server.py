"""Serve a rollout queue over TCP."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence

import msgspec

from torchloom_core.floor.errors import RolloutError
from torchloom_core.floor.open_files import allow_files, most_connections
from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.live.rollout_queue.queue import QueueLimits, RolloutQueue
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.rollouts import (
    LENGTHS,
    MAX_HEADER,
    Batches,
    Done,
    Fetch,
    FromClient,
    FromQueue,
    Given,
    Go,
    Hello,
    Prompts,
    Publish,
    Put,
    Refused,
    Take,
    Weights,
)

_log = logging.getLogger(__name__)
_HELLO_S = 10.0
_BODY_S = 120.0
"""How long a body that was announced may take, and an answer to be read."""

_CHUNK = 1 << 20
_MOST_CONNECTIONS = 1024
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""A client whose host is gone is noticed after 25 s."""

_decode = msgspec.msgpack.Decoder(FromClient).decode


class Service:
    """Connections of clients to a :class:`RolloutQueue`."""

    def __init__(self, limits: QueueLimits) -> None:
        self.queue = RolloutQueue(limits)
        self._changed = asyncio.Condition()
        self._publishing = asyncio.Lock()
        self._connections = 0
        self._limited_log = RateLimitedLog(_log)
        allow_files()
        self._most = most_connections(_MOST_CONNECTIONS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends, or breaks a rule."""
        self._connections += 1
        try:
            self._admit()
            await _Connection(self, reader, writer).serve()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, asyncio.CancelledError):
            pass  # cancelled: this process ends
        except (ValueError, *UNREADABLE) as error:
            text = plain_line(str(error))
            self._limited_log.add("cut off", f"a connection is cut off: {text}")
        finally:
            self._connections -= 1
            writer.close()

    def _admit(self) -> None:
        if self._connections > self._most:
            raise ValueError(f"need at most {self._most} connections, this is one more")

    async def change(self) -> None:
        """Wake all that wait for a change."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, is_true: Callable[[], bool], wait_s: float) -> bool:
        """Wait until something is true, at most so long; return whether it is."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait_for(is_true)
                    return True
        return False

    def publishing(self) -> asyncio.Lock:
        """Return the lock under which weights are received: one version at a time."""
        return self._publishing


class _Connection:
    """One client's connection; one request at a time."""

    def __init__(
        self, service: Service, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service, self._queue = service, service.queue
        self._reader, self._writer = reader, writer
        opened = writer.get_extra_info("socket")
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEP_ALIVE.items():
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
        self._name = ""

    async def serve(self) -> None:
        hello = await asyncio.wait_for(self._request(), _HELLO_S)
        if not isinstance(hello, Hello):
            raise msgspec.ValidationError("need a hello first")
        self._name = hello.client
        number = self._queue.join(hello)
        try:
            await self._answer(Done(depth=self._queue.depth, version=self._queue.weights[0]))
            while True:
                await self._do(await self._request())
        finally:
            self._queue.leave(self._name, number)

    async def _do(self, request: FromClient) -> None:
        match request:
            case Put():
                await self._put(request)
            case Take():
                await self._take(request)
            case Publish():
                await self._publish(request)
            case Fetch():
                await self._fetch(request)
            case Prompts():
                await self._give(request)
            case Hello():
                raise msgspec.ValidationError("need one hello a connection")

    async def _put(self, put: Put) -> None:
        queue = self._queue
        if (earlier := queue.earlier_put(self._name, put)) is not None:
            await self._answer(earlier)
        elif why := queue.refusal(put):
            await self._answer(Refused(why=why))
        elif not await self._service.until(lambda: queue.reserve(put.size), put.wait_s):
            await self._answer(Done(outcome="full", depth=queue.depth, version=queue.version))
        else:
            try:
                body = await self._body(put.size)
            except BaseException:
                queue.release(put.size)
                await self._service.change()
                raise
            done = queue.put(self._name, put, body)
            await self._service.change()
            await self._answer(done)

    async def _take(self, take: Take) -> None:
        found: list[tuple[Batches, list[bytes]]] = []

        def has_taken() -> bool:
            taken = self._queue.take(self._name, take)
            found.extend([taken] if taken is not None else [])
            return bool(found)

        if await self._service.until(has_taken, take.wait_s):
            await self._service.change()
            await self._answer(found[0][0], found[0][1])
        else:
            await self._answer(
                Batches(depth=self._queue.depth, dropped_stale=self._queue.dropped_stale)
            )

    async def _publish(self, publish: Publish) -> None:
        if why := self._queue.refusal(publish):
            await self._answer(Refused(why=why))
            return
        async with self._service.publishing():
            self._queue.publish(publish.version, await self._body(publish.size))
        await self._service.change()
        await self._answer(Done(depth=self._queue.depth, version=self._queue.version))

    async def _fetch(self, fetch: Fetch) -> None:
        is_newer = await self._service.until(
            lambda: self._queue.weights[0] > fetch.newer_than, fetch.wait_s
        )
        version, body = self._queue.weights
        if is_newer:
            await self._answer(Weights(version=version), [body])
        else:
            await self._answer(Weights())

    async def _give(self, prompts: Prompts) -> None:
        positions = self._queue.give(self._name, prompts.count)
        why = "prompts: too many have no answer: put a batch with its positions"
        await self._answer(Given(positions=positions) if positions else Refused(why=why))

    async def _request(self) -> FromClient:
        header, body = LENGTHS.unpack(await self._reader.readexactly(LENGTHS.size))
        if header > MAX_HEADER or body:
            raise ValueError(f"need a request of at most {MAX_HEADER} bytes, was {header + body}")
        request: FromClient = _decode(await self._reader.readexactly(header))
        return request

    async def _body(self, size: int) -> bytes:
        await self._answer(Go())
        return await asyncio.wait_for(self._reader.readexactly(size), _BODY_S)

    async def _answer(self, answer: FromQueue, bodies: Sequence[bytes] = ()) -> None:
        header = msgspec.msgpack.encode(answer)
        self._writer.write(LENGTHS.pack(len(header), sum(map(len, bodies))) + header)
        for body in bodies:
            for at in range(0, len(body), _CHUNK):
                self._writer.write(memoryview(body)[at : at + _CHUNK])
                await asyncio.wait_for(self._writer.drain(), _BODY_S)
        await asyncio.wait_for(self._writer.drain(), _BODY_S)


async def serve(
    host: str,
    port: int,
    limits: QueueLimits,
    ready: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises
    ------
    RolloutError
        If it cannot listen on the address.
    """
    service = Service(limits)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        server = await asyncio.start_server(service.serve, host, port, limit=1 << 22)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise RolloutError(f"--bind: cannot listen on {host}:{port}: {why}") from None
    async with server:
        shown = f"[{host}]" if ":" in host else host
        ready(f"Rollout queue is ready on {shown}:{server.sockets[0].getsockname()[1]}")
        await stop.wait()
        server.close()
