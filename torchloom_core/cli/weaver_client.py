"""Ask a running Weaver, and watch what comes of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from torchloom_core.cli.options import Connection
from torchloom_core.cli.output import console
from torchloom_core.config import Config
from torchloom_core.control import Answer
from torchloom_core.decisions import CommandLife, Outcome
from torchloom_core.errors import BrokerError, RequestError
from torchloom_core.summaries import summarise

if TYPE_CHECKING:
    from torchloom_core.bus import ControlClient

_ANSWER_S = 5.0

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
    except (OSError, msgspec.DecodeError):
        raise BrokerError(
            f"no Weaver is known here: need --url, NATS_URL or broker.url, or the {path} of a "
            "Weaver with its own broker"
        ) from None
    return Address(url, config.run.name, creds or folder / "keys" / "operator.creds")


@asynccontextmanager
async def open_client(connection: Connection) -> AsyncIterator["ControlClient"]:
    """Connect to the run's broker; BrokerError if it cannot be reached."""
    from torchloom_core.bus import ControlClient

    address = find_weaver(connection)
    client = await ControlClient.connect(address.url, address.run, address.creds)
    try:
        yield client
    finally:
        await client.close()


async def ask(client: "ControlClient", verb: str, answer: type[_T], body: Any = None) -> _T:
    """Send one request and return its answer.

    Raises
    ------
    RequestError
        If nobody answers, the Weaver could not answer, or the answer is none.
    """
    data = msgspec.json.encode(body) if body is not None else b""
    reply = await client.ask(verb, data, _ANSWER_S)
    try:
        return msgspec.json.decode(reply, type=answer)
    except msgspec.DecodeError as error:
        with suppress(msgspec.DecodeError):
            raise RequestError(msgspec.json.decode(reply, type=Answer).text) from None
        raise RequestError(f"{verb}: need a {answer.__name__} for an answer: {error}") from None


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
        answer = await ask(client, verb, Answer, body)
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
    """Print the life of the commands ``ids`` and of those that follow from the same verdict."""
    cause = None
    while True:
        kind, data = await heard.get()
        if kind == "command_life":
            life = msgspec.json.decode(data, type=CommandLife)
            if life.command in ids:
                cause = life.cause
            if life.cause == cause:
                console().print(summarise(kind, msgspec.to_builtins(life)), markup=False)
        elif kind == "outcome":
            outcome = msgspec.json.decode(data, type=Outcome)
            if outcome.verdict == cause:
                return outcome
