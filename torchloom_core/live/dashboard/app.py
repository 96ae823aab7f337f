"""The dashboard's web application: the page and its files, the socket, and requests.

The dashboard has no rights of its own: it sends a page's requests, a fixed list of verbs, with the
credentials that it was started with, as the command line does, and the Weaver decides.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from torchloom_core.floor.errors import RequestError
from torchloom_core.floor.quota import Quota
from torchloom_core.floor.web_server import PROMPT_S
from torchloom_core.live.dashboard.auth import PERSON, SESSION, Auth, SessionKeys
from torchloom_core.live.dashboard.browser import Browser, Visitor
from torchloom_core.live.dashboard.proxy_sign_on import ProxySignOn, SignedOn
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.live.transport.operator import ControlClient
from torchloom_core.wire.access import ACTS, VERBS_OF
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.operator import Answer

PAGE = Path(__file__).parent / "page"
MOST_OF_ONE = 40
MOST_BROWSERS = 200
"""Pages open at once; a further one is refused, and tries again."""

_TRY_AGAIN = 1013

MOST_BYTES = 65_536
_ANSWER_S = 5.0
_TRIES = 2
_PER_S, _REST_S = 10.0, 2.0
_STOP = "actions.stop"
_TYPICAL = "propose"
"""A role that may send this verb may send all of a page."""

_FROM_SESSION = frozenset({"actions.stop", "actions.resume", "control.release"})
"""Verbs whose body is only the session."""


class PageRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page's request: the name its user gave, and the body of the verb."""

    name: str
    body: dict[str, Any] = {}


class PageRequests:
    """Forwards the requests of pages."""

    def __init__(self, client: ControlClient) -> None:
        self._client = client
        self._quota = Quota(per_s=_PER_S, rest_s=_REST_S)

    async def forward(
        self, verb: str, data: bytes, session: str, person: SignedOn | None = None
    ) -> Answer:
        """Return the Weaver's answer, or a refusal; ``session`` is the browser's own.

        A ``person`` whom a proxy has signed on acts by that name, as their role allows.
        """
        if verb not in ACTS:
            return Answer(ok=False, text=f"need one of the page's verbs, was {verb[:64]!r}")
        if why := _lacks(person, verb):
            return Answer(ok=False, text=f"{verb}: {why}")
        # The kill switch has a quota of its own.
        if not self._quota.takes(f"{session} {verb == _STOP}", time.monotonic_ns()):
            return Answer(ok=False, text=f"{verb}: need at most {_PER_S:g} requests a second")
        try:
            request = msgspec.json.decode(data, type=PageRequest)
        except UNREADABLE as error:
            return Answer(ok=False, text=f"{verb}: {error}")
        body = {} if verb in _FROM_SESSION else dict(request.body)
        body["session"] = f"{person.name if person else request.name}.{session}"
        try:
            reply = await self._client.ask(verb, msgspec.json.encode(body), _ANSWER_S, _TRIES)
            return msgspec.json.decode(reply, type=Answer)
        except RequestError as error:
            return Answer(ok=False, text=str(error))
        except UNREADABLE as error:
            return Answer(ok=False, text=f"{verb}: the Weaver's answer cannot be read: {error}")

    def refusal(self, person: SignedOn | None) -> str:
        """Return why a page may change nothing, by the person or the credentials; "" if it may."""
        return _lacks(person, _TYPICAL) or self._client.refusal(_TYPICAL)


def _lacks(person: SignedOn | None, verb: str) -> str:
    if person is None or verb in VERBS_OF[person.role]:
        return ""
    return f"need the role operator, {person.name} is a {person.role}"


def application(
    state: RunState,
    requests: PageRequests | None,
    keys: SessionKeys,
    run: str,
    hosts: tuple[str, ...],
    *,
    secure: bool,
    on_entry: Callable[[], None],
    sign_on: ProxySignOn | None = None,
) -> ASGIApp:
    """Return the application, read-only without ``requests``; parameters as of :class:`Auth`."""
    open_pages: dict[WebSocket, str] = {}

    async def page(_: Request) -> Response:
        return FileResponse(PAGE / "index.html", media_type="text/html")

    async def ask(request: Request) -> Response:
        data = b""
        try:
            async with asyncio.timeout(PROMPT_S):
                async for part in request.stream():
                    data += part
                    if len(data) > MOST_BYTES:
                        text = f"need at most {MOST_BYTES} bytes"
                        return _answer(Answer(ok=False, text=text), 413)
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            return _answer(
                Answer(ok=False, text=f"need the whole request within {PROMPT_S:g} s"), 408
            )
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _answer(Answer(ok=False, text="need application/json"), 415)
        if requests is None:
            return _answer(Answer(ok=False, text=state.trouble), 200)
        scope = request.scope
        answer = await requests.forward(
            request.path_params["verb"], data, scope[SESSION], scope.get(PERSON)
        )
        return _answer(answer, 200)  # a refusal is an answer

    async def live(socket: WebSocket) -> None:
        session, sessions = socket.scope[SESSION], list(open_pages.values())
        for count, most, where in (
            (len(sessions), MOST_BROWSERS, ""),
            (sessions.count(session), MOST_OF_ONE, " in one browser"),
        ):
            if count >= most:
                await socket.accept()  # only an open socket can carry a reason
                await socket.close(_TRY_AGAIN, f"need at most {most} pages open at once{where}")
                return
        open_pages[socket] = session
        try:
            person = socket.scope.get(PERSON)
            refusal = requests.refusal(person) if requests else ""
            visitor = Visitor(session, person.name if person else "", refusal)
            await Browser(socket, state, visitor).serve()
        finally:
            del open_pages[socket]

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/ask/{verb}", ask, methods=["POST"]),
            WebSocketRoute("/live", live),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]
    )
    compressed = GZipMiddleware(app, minimum_size=1000)
    return Auth(compressed, keys, run, hosts, secure=secure, on_entry=on_entry, sign_on=sign_on)


def _answer(answer: Answer, status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
