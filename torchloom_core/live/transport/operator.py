"""People's requests: served by the Weaver as a NATS micro service, sent by the command line."""

import getpass
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.micro.request import Request
from nats.micro.service import Service, ServiceConfig

from torchloom_core.floor.errors import MessageError, RequestError, SupersededError, TorchloomError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.floor.quota import Quota
from torchloom_core.floor.server_urls import shown
from torchloom_core.floor.tls import NO_TLS, TlsFiles
from torchloom_core.live.transport.connection import Admits, Connection
from torchloom_core.live.transport.lease import Lease
from torchloom_core.live.transport.security.nats_jwt import ROLE_TAG, user_name, user_tag
from torchloom_core.live.transport.turns import Turns
from torchloom_core.wire import subjects
from torchloom_core.wire.access import READS, VERBS_OF
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, encode
from torchloom_core.wire.messages import SCHEMA_VERSION
from torchloom_core.wire.operator import Answer

_log = logging.getLogger(__name__)

SERVICE = "torchloom"

_REQUESTS = {"per_s": 50.0, "bytes_per_s": 1e6, "rest_s": 10.0}
"""Rate limits of a person: above what people, or their scripts, need."""

_KILL_SWITCH = "actions.stop"
_LONGEST_TEXT = 2000
_SHOWN = 80

Handler = Callable[[bytes, str], Awaitable[bytes]]
"""Answers the body of a request; the second argument is the person's name."""


def gate(now_ns: Callable[[], int]) -> Admits:
    """Return what admits requests within each person's rate limit; others are only logged."""
    quota, limited_log = Quota(**_REQUESTS), RateLimitedLog(_log)

    def admits(subject: str, size: int, headers: bytes) -> bool:
        del headers
        person, verb = subjects.person_and_verb(subject)
        if quota.takes(person, now_ns(), size):
            return True
        text = f"{person[:_SHOWN]} sends too many requests ({verb[:_SHOWN]}): not answered"
        limited_log.add(person, text)
        return False

    return admits


async def serve(
    client: Client,
    run: str,
    handlers: Mapping[str, Handler],
    turns: Turns,
    epoch: int,
    lease: Lease,
) -> Service:
    """Answer each verb, even if its handler fails; ``nats micro ls`` shows the service.

    Requests are shared within the ``epoch`` alone: one that hangs takes none from its successor.
    A Weaver that is not sure of its ``lease`` answers only the kill switch until it is.
    """
    config = ServiceConfig(
        name=SERVICE,
        version=f"{SCHEMA_VERSION}.0.0",
        description="Controls a distributed training run.",
        metadata={"run": run},
        queue_group=f"epoch-{epoch}",
    )
    service = Service(client, config)
    with suppress(nats.errors.TimeoutError):  # it is subscribed; the caller waits for the server
        await service.start()
    for verb, handler in handlers.items():
        await service.add_endpoint(
            name=subjects.token(verb),
            subject=subjects.control(run, verb=verb),
            handler=_answering(verb, handler, turns, lease),
        )
    return service


def _answering(
    verb: str, handler: Handler, turns: Turns, lease: Lease
) -> Callable[[Request], Awaitable[None]]:
    async def answer(request: Request) -> None:
        await turns.give()
        person, _ = subjects.person_and_verb(request.subject)
        try:
            if verb != _KILL_SWITCH:  # which all Weavers may obey, and none may delay
                await lease.sure()
            _check_name(verb, person)
            reply = await handler(request.data, person)
        except SupersededError:
            return  # its successor answers
        except TorchloomError as error:
            reply = _refusal(str(error))
        except Exception as error:  # noqa: BLE001  (every request gets an answer)
            _log.exception("request %s of %s failed", verb, person)
            failure = f"the Weaver failed ({type(error).__name__}: {error})"
            reply = _refusal(f"{verb}: {failure}"[:_LONGEST_TEXT] + "; see its log")
        if len(reply) > MAX_MESSAGE_BYTES:
            need = f"need an answer of at most {MAX_MESSAGE_BYTES} bytes"
            reply = _refusal(f"{verb}: {need}, was {len(reply)}")
        if request._msg.reply:  # a plain `nats pub` has no reply subject
            await request.respond(reply)

    return answer


def _check_name(verb: str, person: str) -> None:
    """Raise MessageError unless it is a name; a server of your own may admit any."""
    if not subjects.is_name(person):
        rule = f"need a person's name of {subjects.NAME_RULE}"
        raise MessageError(f"{verb}: {rule}, was {person[:_SHOWN]!r}")


def _refusal(text: str) -> bytes:
    return encode(Answer(ok=False, text=text[:_LONGEST_TEXT]))


class ControlClient:
    """A person's side: sends requests to the Weaver, and subscribes to its messages."""

    def __init__(self, link: Connection, url: str, run: str, creds: str = "") -> None:
        self.link = link
        self._role = user_tag(creds, ROLE_TAG)
        self._url = shown(url)
        self._run = run
        self._person = _person(creds)

    @classmethod
    async def connect(
        cls, url: str, run: str, creds: Path | None = None, tls: TlsFiles = NO_TLS
    ) -> "ControlClient":
        """Connect as the person named in the credentials, or by login name; BrokerError if not."""
        # People's credentials allow the inbox that plain NATS tools use.
        link = await Connection.open(
            url, creds=creds, tls=tls, name=f"torchloom-cli-{run}", inbox_prefix="_INBOX"
        )
        return cls(link, url, run, _text_of(creds) if creds is not None else "")

    async def ask(
        self, verb: str, body: bytes = b"", timeout_s: float = 5.0, tries: int = 1
    ) -> bytes:
        """Send a request, ``tries`` times at most, and return the answer; or raise RequestError."""
        if why := self.refusal(verb):
            raise RequestError(f"{verb}: {why}")
        try:
            subject = subjects.control(self._run, self._person, verb)
            reply = await self._ask(subject, body, timeout_s, tries)
        except nats.errors.NoRespondersError:
            raise RequestError(
                f"{self._url}: no Weaver of run {self._run} answers {verb!r}; is it running?"
            ) from None
        except nats.errors.TimeoutError:
            hint = "" if verb in READS else ": the request may still be carried out"
            raise RequestError(
                f"{self._url}: no answer to {verb!r} from the Weaver of run {self._run} "
                f"within {tries * timeout_s:g} s{hint}"
            ) from None
        except nats.errors.Error as error:
            raise RequestError(f"{self._url}: {verb!r} could not be sent: {error}") from None
        return bytes(reply.data)

    def refusal(self, verb: str) -> str:
        """Return why the role in the credentials may not send the verb, or ""."""
        allowed = {role for role, verbs in VERBS_OF.items() if verb in verbs}
        if self._role not in VERBS_OF or self._role in allowed:
            return ""
        need = f"need credentials of an {' or '.join(sorted(allowed))}"
        return f"{need}, these are of the {self._role} {self._person}"

    async def _ask(self, subject: str, body: bytes, timeout_s: float, tries: int) -> Msg:
        for _ in range(tries - 1):
            with suppress(nats.errors.TimeoutError):
                return await self.link.client.request(subject, body, timeout=timeout_s)
        return await self.link.client.request(subject, body, timeout=timeout_s)

    async def listen(self, callback: Callable[[str, bytes], None]) -> None:
        """Call ``callback(kind, data)`` for every message that the Weaver publishes from now on."""
        prefix = subjects.out(self._run, "")

        async def take(msg: Msg) -> None:
            callback(msg.subject.removeprefix(prefix), msg.data)

        await self.link.client.subscribe(subjects.out(self._run), cb=take)
        await self.link.settle()

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], pending: int
    ) -> None:
        """Await ``callback`` for each message; beyond ``pending`` that wait, some are lost."""
        await self.link.client.subscribe(subject, cb=callback, pending_msgs_limit=pending)

    async def close(self) -> None:
        """Disconnect."""
        await self.link.close()


def _text_of(creds: Path) -> str:
    return creds.read_text(encoding="utf-8")


def _person(creds: str) -> str:
    """Return the person's name, turned into a valid one if necessary."""
    if creds:
        return subjects.as_name(user_name(creds))
    try:
        return subjects.as_name(getpass.getuser())
    except (KeyError, OSError, ImportError):  # a user id without an entry
        return subjects.DEFAULT_PERSON
