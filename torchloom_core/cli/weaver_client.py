"""Send requests to a running Weaver, and follow the outcome."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from torchloom_core.cli.options import Connection
from torchloom_core.cli.output import console
from torchloom_core.config.schema import Config
from torchloom_core.floor.errors import BrokerError, RequestError
from torchloom_core.floor.plain_text import natural_key
from torchloom_core.floor.tls import NO_TLS, TlsFiles
from torchloom_core.wire.actions import Action
from torchloom_core.wire.capabilities import from_json
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus, Outcome
from torchloom_core.wire.operator import Answer, KnobTable, Page
from torchloom_core.wire.placement import TRAINER
from torchloom_core.wire.status import Status, WorkerStatus

if TYPE_CHECKING:
    from torchloom_core.live.transport import ControlClient

_ANSWER_S = 5.0
_TRIES = 2
_SUMMARY = Page(summary=True)

_T = TypeVar("_T")


class Address(NamedTuple):
    """Address of a run's Weaver."""

    url: str
    run: str
    creds: Path | None
    tls: TlsFiles = NO_TLS


class _BrokerFile(msgspec.Struct):
    """The part of the embedded broker's ``broker.json`` that a client needs."""

    url: str


def find_weaver(connection: Connection) -> Address:
    """Return the server of the options or the config, else the embedded broker.

    Raises BrokerError if none is given, and no Weaver has started one from this folder.
    """
    config = connection.load()
    url = config.broker.url
    creds = connection.creds or (Path(config.broker.creds) if config.broker.creds else None)
    if config.broker.accounts and not creds:
        creds = Path(config.weaver.state_dir) / "broker" / "keys" / "operator.creds"
    if url:
        return Address(url, config.run.name, creds, config.broker.tls)
    return _embedded(config, creds)


def _embedded(config: Config, creds: Path | None) -> Address:
    folder = Path(config.weaver.state_dir) / "broker"
    url = config.broker.peers_url or _own_url(folder / "broker.json")
    creds = creds or folder / "keys" / "operator.creds"
    return Address(url, config.run.name, creds, TlsFiles(ca=config.broker.ca, place="[broker]"))


def _own_url(path: Path) -> str:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_BrokerFile).url
    except (OSError, *UNREADABLE):
        raise BrokerError(
            f"no Weaver found: give --url, NATS_URL or broker.url, or start a Weaver here, which "
            f"writes {path}"
        ) from None


@asynccontextmanager
async def open_client(connection: Connection) -> AsyncIterator["ControlClient"]:
    """Connect to the run's broker; BrokerError if it cannot be reached."""
    from torchloom_core.live.transport import ControlClient

    address = find_weaver(connection)
    client = await ControlClient.connect(*address)
    try:
        yield client
    finally:
        await client.close()


async def send(
    client: "ControlClient", verb: str, answer: type[_T], body: Any = None, tries: int = 1
) -> _T:
    """Send one request, up to ``tries`` times if there is no answer, and return the answer.

    Raises RequestError if there is none, or it is an error or unreadable.
    """
    data = msgspec.json.encode(body) if body is not None else b""
    reply = await client.ask(verb, data, _ANSWER_S, tries)
    try:
        if answer is not Answer:  # a refusal would decode as an empty answer
            with suppress(*UNREADABLE):
                raise RequestError(msgspec.json.decode(reply, type=Answer).text)
        return msgspec.json.decode(reply, type=answer)
    except UNREADABLE as error:
        raise RequestError(f"{verb}: the answer is no {answer.__name__}: {error}") from None


async def fetch_status(client: "ControlClient", wanted: Page = _SUMMARY) -> Status:
    """Return the status with all workers that are wanted, or a summary of a large run.

    The workers are requested page by page, up to the limit; raises as :func:`send` does.
    """
    first = page = await send(client, "status", Status, wanted)
    workers = list(first.workers)
    while page.more and (not wanted.limit or len(workers) < wanted.limit):
        after = page.workers[-1].worker
        left = wanted.limit and wanted.limit - len(workers)
        following = msgspec.structs.replace(wanted, after=after, limit=left, summary=False)
        page = await send(client, "status", Status, following)
        workers += page.workers
    workers.sort(key=_place)
    return msgspec.structs.replace(first, workers=tuple(workers), more=page.more)


def _place(row: WorkerStatus) -> tuple[Any, ...]:
    """Sort trainers first, then by role, group and worker."""
    return row.role != TRAINER, row.role, natural_key(row.group), natural_key(row.worker)


async def fetch_knobs(client: "ControlClient") -> KnobTable:
    """Return the whole table of knobs, requested page by page; raises as :func:`send` does."""
    first = page = await send(client, "knobs", KnobTable)
    values, roles = dict(first.values), dict(first.roles)
    while page.more:
        page = await send(client, "knobs", KnobTable, Page(after=list(values)[-1]))
        values |= page.values
        roles |= page.roles
    values = {worker: values[worker] for worker in sorted(values, key=natural_key)}
    return msgspec.structs.replace(first, values=values, roles=roles, more=False)


def propose(action: Action, wait_s: float, connection: Connection) -> None:
    """Propose an action as a policy does, and print the verdict and the outcome."""
    act(connection, "propose", {"action": action}, wait_s=wait_s)


def act(connection: Connection, verb: str, body: Any = None, *, wait_s: float = 0.0) -> None:
    """Request an action, print its progress, and return once it is done.

    Raises RequestError if it is refused, fails, or does not end within ``wait_s``.
    """
    asyncio.run(_act(connection, verb, body, wait_s))


async def _act(connection: Connection, verb: str, body: Any, wait_s: float) -> None:
    async with open_client(connection) as client:
        messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        if wait_s > 0:
            # Before the request, so that no status of the first command is missed.
            await client.listen(lambda kind, data: messages.put_nowait((kind, data)))
        if body is not None:
            # The id prevents a second execution if only the answer was lost.
            body = {**msgspec.to_builtins(body), "id": uuid.uuid4().hex}
        answer = await send(client, verb, Answer, body, _TRIES)
        if not answer.ok:
            raise RequestError(answer.text)
        console().print(": ".join(filter(None, [answer.text, ", ".join(answer.ids)])), markup=False)
        if wait_s > 0 and answer.ids:
            try:
                outcome = await asyncio.wait_for(_outcome(messages, answer.ids), wait_s)
            except TimeoutError:
                raise RequestError(
                    f"not finished after {wait_s:g} s; it continues: see torchloom status"
                ) from None
            if outcome.result != "done":
                raise RequestError(f"{outcome.result}: {outcome.detail}")
            console().print(f"done: {outcome.detail}", markup=False)


async def _outcome(messages: asyncio.Queue[tuple[str, bytes]], ids: tuple[str, ...]) -> Outcome:
    """Print each status of the commands ``ids`` and of those with the same verdict.

    For a plan that waits for its turn, ``ids`` holds the verdict.
    """
    from torchloom_core.live.trajectory.summaries import summarise

    cause = None
    while True:
        kind, data = await messages.get()
        try:
            message = from_json(data, CommandStatus | Outcome)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # another kind of message, such as an answer
        if isinstance(message, Outcome):
            if message.verdict == cause or message.verdict in ids:
                return message
            continue
        if message.command in ids or message.cause in ids:
            cause = message.cause
        if message.cause == cause:
            console().print(summarise(kind, msgspec.to_builtins(message)), markup=False)
