"""Serve a web application in a process that has other tasks; the dashboard and lighthouse do.

uvicorn is subclassed because it installs its own signal handlers, has no limit on connections
without a request (each costs memory and a file descriptor), and closes no incomplete request.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.open_files import allow_files, most_connections

_log = logging.getLogger(__name__)

PROMPT_S = 10.0
"""Time limit of a TLS handshake, and of a complete request."""

_TLS_SHUTDOWN_S = 1.0
_RETRY_S = 1.0
_MOST_CONNECTIONS = 4096
_MOST_ARRIVING = 512
"""Connections without a request yet; with TLS each takes a quarter of a MiB."""

_BAD_TEXT = "Invalid UTF-8"


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; OSError if none can."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()  # connections before the server starts wait, and are not refused
    except OSError:
        found.close()
        raise
    return found


def url_of(found: socket.socket, *, secure: bool = False) -> str:
    """Return the URL of a listener, such as ``http://127.0.0.1:29511``."""
    host, port = found.getsockname()[:2]
    return f"http{'s' * secure}://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def served(
    application: Any, *found: socket.socket, tls: ssl.SSLContext | None = None, **options: Any
) -> AsyncIterator[None]:
    """Serve an ASGI application at listeners, by TLS or not, with further options of uvicorn."""
    allow_files()
    logging.getLogger("uvicorn.error").addFilter(_in_one_line)
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="error",  # clients could flood the log with warnings
        access_log=False,
        lifespan="off",
        server_header=False,
        **options,
    )
    server = _Server(config, tls)
    task = asyncio.create_task(server.serve(sockets=list(found)))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """A server without signal handlers, with at most as many connections as file descriptors.

    When all places are taken, a new connection replaces the one that has been longest without a
    request: idle connections cannot block requests.
    """

    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen until :meth:`shutdown`."""
        await self.lifespan.startup()
        self.servers = []  # not asyncio's: those allow a minute per TLS handshake, uncounted
        self._arriving: dict[_Prompt, asyncio.Task[None]] = {}
        self._taking = [asyncio.create_task(self._take(found)) for found in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and close all connections."""
        tasks = *self._taking, *self._arriving.values()
        await end_all(*tasks)
        await super().shutdown(sockets)

    async def _take(self, found: socket.socket) -> None:
        """Accept connections until cancelled; close those without a place."""
        found.setblocking(False)
        found.listen(self.config.backlog)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # with many pending connections nothing below waits
            try:
                connection, _ = await loop.sock_accept(found)
            except ConnectionError:
                continue  # closed already
            except OSError as error:
                _log.warning("cannot accept a connection: %s", error.strerror)
                await asyncio.sleep(_RETRY_S)
                continue
            if self._has_place():
                protocol = _Prompt(self.config, self.server_state, self.lifespan.state)
                self._arriving[protocol] = asyncio.create_task(self._admit(protocol, connection))
            else:
                connection.close()

    def _has_place(self) -> bool:
        """Return whether there is a place; if not, close an idle connection for one."""
        there = self.server_state.connections | self._arriving.keys()
        if (
            len(there) < most_connections(_MOST_CONNECTIONS)
            and len(self._arriving) < _MOST_ARRIVING
        ):
            return True
        longest = next(iter(self._arriving), None)
        if longest is not None:
            self._arriving.pop(longest).cancel()
        return longest is not None

    async def _admit(self, protocol: "_Prompt", connection: socket.socket) -> None:
        """Complete the TLS handshake, if configured, and wait for the first request."""
        tls = self._tls
        limits = {"ssl_handshake_timeout": PROMPT_S, "ssl_shutdown_timeout": _TLS_SHUTDOWN_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, **(limits if tls else {})
            )
            async with asyncio.timeout(PROMPT_S):
                await protocol.has_request.wait()
        except OSError:
            pass  # not TLS, or too late
        finally:
            self._arriving.pop(protocol, None)
            if not protocol.has_request.is_set() and protocol.transport:
                protocol.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture no signals."""
        yield


class _Prompt(H11Protocol):
    """HTTP with a time limit for a request.

    ``has_request`` is set once a request has arrived, or the connection is closed.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.has_request = asyncio.Event()
        self._has_waited = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit."""
        super().connection_made(transport)
        self.loop.call_later(PROMPT_S, self._check)

    def data_received(self, data: bytes) -> None:
        """Note whether a request has arrived."""
        super().data_received(data)
        if self.cycle is not None or self.transport.get_protocol() is not self:
            self.has_request.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed."""
        super().connection_lost(exc)
        self.has_request.set()

    def _check(self) -> None:
        """Close the connection if its request was incomplete at the last check, too."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        waits = is_answered and self.timeout_keep_alive_task is None
        if waits and self._has_waited:
            self.transport.abort()
            return
        self._has_waited = waits
        self.loop.call_later(PROMPT_S, self._check)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Drop the traceback of the error that a browser has sent invalid UTF-8."""
    if _BAD_TEXT in str(record.msg):
        record.exc_info = None
    return True
