"""All that can send something: workers, a joiner, people, the lighthouse, a host, a scraper."""

import asyncio
import contextlib
import time
from typing import Any

import msgspec
import nats.errors
from found import Found
from mutation import Mutator, as_json, as_msgpack
from nats.aio.client import RawCredentials
from nats.aio.msg import Msg
from prometheus_client.parser import text_string_to_metric_families
from scene import PATIENCE_S, Scene
from templates import (
    RUN,
    ack,
    bodies,
    events,
    join_request,
    large_note,
    lighthouse_view,
    owner,
    telemetry,
)

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.nats_client import NatsClient
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.wire import subjects
from torchloom_core.wire.access import PersonRole
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_command, decode_json
from torchloom_core.wire.commands import Command
from torchloom_core.wire.messages import JoinReply
from torchloom_core.wire.status import Status

WORKERS = (*((f"w-{number}", 1) for number in range(10)), ("w-0", 2), ("w-0", 3))
"""Enough of them, and of people, that few messages are beyond a sender's quota."""
PEOPLE: dict[str, PersonRole] = {
    **{f"person{number}": "operator" for number in range(20)},
    "watcher": "viewer",
    "chief": "admin",
}
_JOINERS = 20
"""The Weaver closes a joiner's connection with more than five requests a second; it comes back."""
_OBSERVER = "observer"
_TURNS = "wwwwwwjpppplwwwwwwjpppplwwwwwwjppppl" + "sh"
"""Of workers, joiner, people, lighthouse, scraper and host."""
_GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n"
_FLUSH_S = 10.0
_RESUMED = 0.9
_HTTP_S = 1.0
_SCRAPERS = 50
"""Connections at once to the port of the metrics, more than it keeps."""
_Sender = tuple[str, int]


class Parties:
    """Each on a connection of its own; one more person requests the status and nothing else."""

    observer: NatsClient
    lighthouse: NatsClient
    host: NatsClient

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.joiners: list[NatsClient] = []
        self.workers: dict[_Sender, NatsClient] = {}
        self.people: dict[str, NatsClient] = {}
        self._commands: dict[_Sender, Command] = {}
        self._scrapers: set[asyncio.Task[None]] = set()
        self.acked = 0

    async def connect(self) -> None:
        """Connect all; a worker enrols as any other does, for each incarnation."""
        scene, join = self._scene, self._scene.join
        for _ in range(_JOINERS):
            self.joiners.append(await _connect(join.url, join.creds, f"_INBOX_JOIN_{RUN}"))
        for name, role in PEOPLE.items():
            self.people[name] = await _connect(join.url, scene.person_creds(name, role), "_INBOX")
        seen_by = scene.person_creds(_OBSERVER, "admin")
        self.observer = await _connect(join.url, seen_by, "_INBOX")
        own = scene.credentials
        inbox = subjects.lighthouse_inbox(RUN)
        self.lighthouse = await _connect(join.url, own.lighthouse_creds.read_text(), inbox)
        self.host = await _connect(join.url, own.weaver_creds.read_text(), "_INBOX_HOST")
        seed = nats_jwt.new_seed("user")
        self._key = nats_jwt.public_key(seed)
        for name, incarnation in WORKERS:
            request = as_json(join_request(name, self._key, incarnation))
            answer = await self.joiners[0].request(subjects.join(RUN), request, timeout=PATIENCE_S)
            creds = nats_jwt.creds_text(decode_json(JoinReply, answer.data, "join reply").jwt, seed)
            prefix = subjects.inbox_prefix(RUN, name, incarnation)
            client = await _connect(join.url, creds, prefix)
            self.workers[name, incarnation] = client
            await client.subscribe(subjects.command(RUN, name, incarnation), cb=self._commanded)

    async def _commanded(self, msg: Msg) -> None:
        with contextlib.suppress(MessageError):
            command = decode_command(msg.data)
            self._commands[command.worker, command.incarnation] = command

    async def send(self, mutator: Mutator, number: int) -> None:
        """Send one mutated message of one party, in turns."""
        match _TURNS[number % len(_TURNS)]:
            case "w":
                await self._worker(mutator)
            case "j":
                await self._joiner(mutator)
            case "p":
                await self._person(mutator)
            case "l":
                data = mutator.message(lighthouse_view(), as_json)
                await _publish(self.lighthouse, subjects.lighthouse(RUN), data)
            case "s":
                if len(self._scrapers) < _SCRAPERS:
                    task = asyncio.create_task(self._scraper(mutator))
                    self._scrapers.add(task)
                    task.add_done_callback(self._scrapers.discard)
            case _:
                await self._host(mutator)

    async def _worker(self, mutator: Mutator) -> None:
        choose = mutator.random.choice
        sender = choose(WORKERS)
        own = RUN, *sender
        answer = ack(*sender)
        if (command := self._commands.get(sender)) is not None:
            answer |= {"command": command.id, "epoch": command.epoch}
            self.acked += 1
        kinds: list[tuple[str, Any, Any]] = [
            *((subjects.telemetry(*own), telemetry(*sender), as_msgpack) for _ in range(4)),
            *((subjects.event(*own), event, as_json) for event in events(*sender)),
            *((subjects.ack(*own), answer, as_json) for _ in range(3)),
        ]
        subject, template, encode = choose(kinds)
        if mutator.random.random() < 0.01:
            subject, template, encode = subjects.bulk(*own), large_note(*sender), as_json
        await _publish(self.workers[sender], subject, mutator.message(template, encode))

    async def _joiner(self, mutator: Mutator) -> None:
        worker = mutator.random.choice(("w-0", "w-1", "new-0", "g0-0"))
        template = join_request(worker, self._key)
        client = mutator.random.choice(self.joiners)
        await _publish(client, subjects.join(RUN), mutator.message(template, as_json))

    async def _person(self, mutator: Mutator) -> None:
        name = mutator.random.choice(tuple(PEOPLE))
        verb, body = mutator.random.choice(bodies())
        data = mutator.message(body, as_json)
        client = self.people[name]
        await _publish(client, subjects.control(RUN, name, verb), data)
        if verb == "actions.stop" and mutator.random.random() < _RESUMED:
            # It stops them with any body; then all else would be denied.
            await _publish(client, subjects.control(RUN, name, "actions.resume"), b"")

    async def _host(self, mutator: Mutator) -> None:
        """Send a piece of a record, or the announcement of a standby.

        A piece is one of an earlier epoch: those of this one are what the standby needs.
        """
        if mutator.random.random() < 0.5:
            data = mutator.message(owner(), as_json)
            await _publish(self.host, f"_INBOX_WEAVER_{RUN}.standby", data)
            return
        whole = {"TL-File": "events-000001.jsonl", "TL-Offset": "0", "TL-Cut": "1"}
        found = mutator.structure(whole)
        headers = found if isinstance(found, dict) else whole
        plain = {_word(key): _word(value) for key, value in headers.items() if _word(key)}
        data = mutator.random.randbytes(100)
        subject = subjects.record(RUN, mutator.random.choice(("1", "2", "x", "9" * 30)))
        with contextlib.suppress(nats.errors.BadHeaderError):  # of the client, not sent
            await self.host.publish(subject, data, headers=plain or None)

    async def _scraper(self, mutator: Mutator) -> None:
        """Send a request to the port of the metrics, and read some of the answer or none."""
        port = self._scene.metrics_port
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_HTTP_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(mutator.bytes(_GET))
                if mutator.random.random() < 0.5:
                    await reader.read(100)
                if mutator.random.random() < 0.5:
                    writer.transport.abort()
                writer.close()

    async def scrape(self, found: Found, number: int) -> None:
        """Read the metrics as Prometheus does; an answer that is none is a finding."""
        text = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                port = self._scene.metrics_port
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(_GET.replace(b"HTTP/1.1", b"HTTP/1.0"))
                text = (await reader.read()).decode().partition("\r\n\r\n")[2]
                writer.close()
            count = sum(len(one.samples) for one in text_string_to_metric_families(text))
            if not count:
                found.hang(f"no metrics after {number} messages")
        except (OSError, TimeoutError) as error:
            found.hang(f"no metrics after {number} messages: {type(error).__name__} {error}")
        except ValueError as error:
            found.traceback(f"metrics that cannot be parsed after {number} messages: {error}")

    async def flush(self) -> None:
        """Wait until the broker has received all messages."""
        await asyncio.gather(*map(_flushed, self._clients()))

    async def status(self) -> Status:
        """Request the Weaver's status."""
        subject = subjects.control(RUN, _OBSERVER, "status")
        answer = await self.observer.request(subject, b"", timeout=PATIENCE_S)
        return msgspec.json.decode(answer.data, type=Status)

    async def close(self) -> None:
        """Disconnect all."""
        for client in self._clients():
            await client.close()

    def _clients(self) -> list[NatsClient]:
        others = self.observer, self.lighthouse, self.host
        return [*self.joiners, *self.workers.values(), *self.people.values(), *others]


def _word(value: object) -> str:
    """Return a value as part of a header: nats-py encodes it as UTF-8."""
    try:
        text = str(value)
    except RecursionError:  # a list in a list in a list ...
        text = "deep"
    return text[:300].encode(errors="replace").decode().strip()


async def _publish(client: NatsClient, subject: str, data: bytes) -> None:
    with contextlib.suppress(nats.errors.OutboundBufferLimitError):  # while it reconnects
        # The server closes the connection of a longer message.
        await client.publish(subject, data[:MAX_MESSAGE_BYTES])


async def _flushed(client: NatsClient) -> None:
    """Wait until the server has all; what it had of a connection that was closed is not known."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await client.flush(timeout=_FLUSH_S)
        except nats.errors.Error:
            if time.monotonic() > deadline_s:
                raise


async def _connect(url: str, creds: str, inbox: str) -> NatsClient:
    client = NatsClient()
    await client.connect(
        url,
        user_credentials=RawCredentials(creds),
        inbox_prefix=inbox,
        error_cb=_ignore,
        max_reconnect_attempts=-1,
    )
    return client


async def _ignore(error: Exception) -> None:
    pass
