"""The dashboard's web application: the page and its files, the socket, and requests."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from torchloom_core.dashboard.auth import SESSION, Auth
from torchloom_core.dashboard.browser import Browser
from torchloom_core.dashboard.requests import MOST_BYTES, PageRequests
from torchloom_core.dashboard.seen import Seen
from torchloom_core.dashboard.session_keys import SessionKeys
from torchloom_core.web_server import PROMPT_S
from torchloom_core.wire.operator import Answer

PAGE = Path(__file__).parent / "page"
MOST_OF_ONE = 40
MOST_BROWSERS = 200
"""Pages that are open at once; whoever comes after them is told so, and to come again."""

_TRY_AGAIN = 1013


def application(
    seen: Seen,
    asks: PageRequests | None,
    keys: SessionKeys,
    run: str,
    hosts: tuple[str, ...],
    *,
    secure: bool,
    on_entry: Callable[[], None],
) -> ASGIApp:
    """Return what is served; parameters as of :class:`Auth`. Without ``asks`` none are taken."""
    there: dict[WebSocket, str] = {}

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
            return _answer(Answer(ok=False, text=f"need all of it within {PROMPT_S:g} s"), 408)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _answer(Answer(ok=False, text="need application/json"), 415)
        if asks is None:
            return _answer(Answer(ok=False, text=seen.trouble), 200)
        answer = await asks.pass_on(request.path_params["verb"], data, request.scope[SESSION])
        return _answer(answer, 200)  # a refusal is an answer

    async def look(socket: WebSocket) -> None:
        session, sessions = socket.scope[SESSION], list(there.values())
        for count, most, where in (
            (len(sessions), MOST_BROWSERS, ""),
            (sessions.count(session), MOST_OF_ONE, " in one browser"),
        ):
            if count >= most:
                await socket.accept()  # a page is not told why its socket was not opened
                await socket.close(_TRY_AGAIN, f"need at most {most} pages open at once{where}")
                return
        there[socket] = session
        try:
            await Browser(socket, seen, session).serve()
        finally:
            del there[socket]

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/ask/{verb}", ask, methods=["POST"]),
            WebSocketRoute("/live", look),
            Mount("/page", StaticFiles(directory=PAGE)),
        ]
    )
    packed = GZipMiddleware(app, minimum_size=1000)
    return Auth(packed, keys, run, hosts, secure=secure, on_entry=on_entry)


def _answer(answer: Answer, status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
