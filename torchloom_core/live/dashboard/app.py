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

from torchloom_core.floor.web_server import PROMPT_S
from torchloom_core.live.dashboard.auth import SESSION, Auth
from torchloom_core.live.dashboard.browser import Browser
from torchloom_core.live.dashboard.requests import MOST_BYTES, PageRequests
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.live.dashboard.session_keys import SessionKeys
from torchloom_core.wire.operator import Answer

PAGE = Path(__file__).parent / "page"
MOST_OF_ONE = 40
MOST_BROWSERS = 200
"""Pages open at once; a further one is refused, and tries again."""

_TRY_AGAIN = 1013


def application(
    state: RunState,
    requests: PageRequests | None,
    keys: SessionKeys,
    run: str,
    hosts: tuple[str, ...],
    *,
    secure: bool,
    on_entry: Callable[[], None],
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
        answer = await requests.forward(request.path_params["verb"], data, request.scope[SESSION])
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
            await Browser(socket, state, session).serve()
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
    return Auth(compressed, keys, run, hosts, secure=secure, on_entry=on_entry)


def _answer(answer: Answer, status: int) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
