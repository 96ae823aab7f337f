"""Ask a running Weaver, and watch what comes of it."""

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
from torchloom_core.errors import BrokerError, RequestError
from torchloom_core.plain_text import natural_key
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import CommandStatus, Outcome
from torchloom_core.wire.operator import Answer, KnobTable, Page, Status

if TYPE_CHECKING:
    from torchloom_core.transport import ControlClient

_ANSWER_S = 5.0
_TRIES = 2

_T = TypeVar("_T")


class Address(NamedTuple):
    """Where a run's Weaver is to be found."""

    url: str
    run: str
    creds: Path | None


class _BrokerFile(msgspec.Struct):
    """The part of the embedded broker's ``broker.json`` that a client needs."""

    url: str


def find_weaver(connection: Connection) -> Address:
    """Return the server that the options or the config name, else the embedded broker's.

    Raises
    ------
    BrokerError
        If nobody named a server, and no Weaver has started one from this folder.
    """
    config = connection.load()
    url = connection.url or config.broker.url
    creds = connection.creds or (Path(config.broker.creds) if config.broker.creds else None)
    return Address(url, config.run.name, creds) if url else _embedded(config, creds)


def _embedded(config: Config, creds: Path | None) -> Address:
    folder = Path(config.weaver.state_dir) / "broker"
    path = folder / "broker.json"
    try:
        url = msgspec.json.decode(path.read_bytes(), type=_BrokerFile).url
    except (OSError, *UNREADABLE):
        raise BrokerError(
            f"no Weaver is known here: need --url, NATS_URL or broker.url, or the {path} of a "
            "Weaver with its own broker"
        ) from None
    return Address(url, config.run.name, creds or folder / "keys" / "operator.creds")


@asynccontextmanager
async def open_client(connection: Connection) -> AsyncIterator["ControlClient"]:
    """Connect to the run's broker; BrokerError if it cannot be reached."""
    from torchloom_core.transport import ControlClient

    address = find_weaver(connection)
    client = await ControlClient.connect(address.url, address.run, address.creds)
    try:
        yield client
    finally:
        await client.close()


async def ask(
    client: "ControlClient", verb: str, answer: type[_T], body: Any = None, tries: int = 1
) -> _T:
    """Send one request, again if it is not answered in time, and return its answer.

    Raises
    ------
    RequestError
        If nobody answers, the Weaver could not answer, or the answer is none.
    """
    data = msgspec.json.encode(body) if body is not None else b""
    reply = await client.ask(verb, data, _ANSWER_S, tries)
    try:
        if answer is not Answer:  # a refusal would pass for an answer in which nothing is set
            with suppress(*UNREADABLE):
                raise RequestError(msgspec.json.decode(reply, type=Answer).text)
        return msgspec.json.decode(reply, type=answer)
    except UNREADABLE as error:
        raise RequestError(f"{verb}: need a {answer.__name__} for an answer: {error}") from None


async def ask_status(client: "ControlClient") -> Status:
    """Return the whole status, asked for page by page; raises as :func:`ask` does."""
    first = page = await ask(client, "status", Status)
    workers = list(first.workers)
    while page.more:
        page = await ask(client, "status", Status, Page(after=page.workers[-1].worker))
        workers += page.workers
    workers.sort(key=lambda row: (natural_key(row.group), natural_key(row.worker)))
    return msgspec.structs.replace(first, workers=tuple(workers), more=False)


async def ask_knobs(client: "ControlClient") -> KnobTable:
    """Return the whole table of knobs, asked for page by page; raises as :func:`ask` does."""
    first = page = await ask(client, "knobs", KnobTable)
    values = dict(first.values)
    while page.more:
        page = await ask(client, "knobs", KnobTable, Page(after=list(values)[-1]))
        values |= page.values
    values = {worker: values[worker] for worker in sorted(values, key=natural_key)}
    return msgspec.structs.replace(first, values=values, more=False)


def act(connection: Connection, verb: str, body: Any = None, *, wait_s: float = 0.0) -> None:
    """Ask for something to be done, tell how it goes, and return once it is done.

    Raises
    ------
    RequestError
        If it is refused, fails, or is not over within ``wait_s``.
    """
    asyncio.run(_act(connection, verb, body, wait_s))


async def _act(connection: Connection, verb: str, body: Any, wait_s: float) -> None:
    async with open_client(connection) as client:
        heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        if wait_s > 0:
            # Before asking, so that not even the first command's life is missed.
            await client.listen(lambda kind, data: heard.put_nowait((kind, data)))
        if body is not None:
            # So that it is not done twice if only its answer was lost.
            body = {**msgspec.to_builtins(body), "id": uuid.uuid4().hex}
        answer = await ask(client, verb, Answer, body, _TRIES)
        if not answer.ok:
            raise RequestError(answer.text)
        console().print(": ".join(filter(None, [answer.text, ", ".join(answer.ids)])), markup=False)
        if wait_s > 0 and answer.ids:
            try:
                outcome = await asyncio.wait_for(_outcome(heard, answer.ids), wait_s)
            except TimeoutError:
                raise RequestError(
                    f"not over after {wait_s:g} s; it goes on, see torchloom status"
                ) from None
            if outcome.result != "done":
                raise RequestError(f"{outcome.result}: {outcome.detail}")
            console().print(f"done: {outcome.detail}", markup=False)


async def _outcome(heard: asyncio.Queue[tuple[str, bytes]], ids: tuple[str, ...]) -> Outcome:
    """Print the life of the commands ``ids`` and of those that follow from the same verdict.

    Of a plan that waits for its turn there is none yet: ``ids`` holds its verdict.
    """
    from torchloom_core.trajectory.summaries import summarise

    cause = None
    while True:
        kind, data = await heard.get()
        try:
            told = msgspec.json.decode(data, type=CommandStatus | Outcome)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue  # something else that is told; anybody's answer, for one
        if isinstance(told, Outcome):
            if told.verdict == cause or told.verdict in ids:
                return told
            continue
        if told.command in ids or told.cause in ids:
            cause = told.cause
        if told.cause == cause:
            console().print(summarise(kind, msgspec.to_builtins(told)), markup=False)
