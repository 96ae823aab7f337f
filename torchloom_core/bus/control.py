"""People's requests: served by the Weaver as a NATS micro service, sent by the command line."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import nats.errors
import nats.micro
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import Request
from nats.micro.service import Service

from torchloom_core import subjects
from torchloom_core.bus.link import Link
from torchloom_core.codec import encode
from torchloom_core.control import Answer
from torchloom_core.errors import RequestError, TorchloomError
from torchloom_core.messages import SCHEMA_VERSION

_log = logging.getLogger(__name__)

SERVICE = "torchloom"

Handler = Callable[[bytes], Awaitable[bytes]]


async def serve(client: Client, run: str, handlers: Mapping[str, Handler]) -> Service:
    """Answer each verb on its subject; ``nats micro ls`` shows the service ``torchloom``.

    Whatever a handler raises is answered with an :class:`~torchloom_core.control.Answer`
    that is not ok.
    """
    service = await nats.micro.add_service(
        client,
        name=SERVICE,
        version=f"{SCHEMA_VERSION}.0.0",
        description="Controls a distributed training run.",
        metadata={"run": run},
    )
    for verb, handler in handlers.items():
        await service.add_endpoint(
            name=subjects.token(verb),
            subject=subjects.control(run, verb),
            handler=_answering(verb, handler),
        )
    return service


def _answering(verb: str, handler: Handler) -> Callable[[Request], Awaitable[None]]:
    async def answer(request: Request) -> None:
        try:
            reply = await handler(request.data)
        except TorchloomError as error:
            reply = encode(Answer(ok=False, text=str(error)))
        except Exception as error:  # noqa: BLE001  (a person is owed an answer)
            _log.exception("request %s failed", verb)
            text = f"{verb}: the Weaver failed ({type(error).__name__}: {error}); its log says more"
            reply = encode(Answer(ok=False, text=text))
        if request._msg.reply:  # a plain `nats pub` wants no answer
            await request.respond(reply)

    return answer


class ControlClient:
    """A person's side: asks the Weaver, and listens to what it tells."""

    def __init__(self, link: Link, url: str, run: str) -> None:
        self._link = link
        self._url = url
        self._run = run

    @classmethod
    async def connect(cls, url: str, run: str, creds: Path | None = None) -> "ControlClient":
        """Connect to the run's broker.

        Raises
        ------
        BrokerError
            If it cannot be reached, refuses the credentials, or is too old.
        """
        # People's credentials allow the inbox that plain NATS tools use.
        link = await Link.open(url, creds=creds, name=f"torchloom-cli-{run}", inbox_prefix="_INBOX")
        return cls(link, url, run)

    async def ask(self, verb: str, body: bytes = b"", timeout_s: float = 5.0) -> bytes:
        """Return the Weaver's answer to ``verb``.

        Raises
        ------
        RequestError
            If nobody answers.
        """
        try:
            reply: Msg = await self._link.client.request(
                subjects.control(self._run, verb), body, timeout=timeout_s
            )
        except nats.errors.NoRespondersError:
            raise RequestError(
                f"{self._url}: no Weaver of run {self._run} answers {verb!r}; is it running?"
            ) from None
        except nats.errors.TimeoutError:
            raise RequestError(
                f"{self._url}: need an answer to {verb!r} from the Weaver of run {self._run} "
                f"within {timeout_s:g} s, was silence"
            ) from None
        except nats.errors.Error as error:
            raise RequestError(f"{self._url}: {verb!r} could not be asked: {error}") from None
        return bytes(reply.data)

    async def listen(self, callback: Callable[[str, bytes], None]) -> None:
        """Call ``callback(kind, data)`` for everything the Weaver tells from now on."""
        prefix = subjects.out(self._run, "")

        async def take(msg: Msg) -> None:
            callback(msg.subject.removeprefix(prefix), msg.data)

        await self._link.client.subscribe(subjects.out(self._run), cb=take)
        await self._link.settle()

    async def close(self) -> None:
        """Disconnect."""
        await self._link.close()
