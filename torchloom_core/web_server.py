"""Serve a web application beside what else a process does, until that ends."""

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)

PROMPT_S = 10.0
"""Within which a request has to be there, all of it, and before it what TLS has to agree on."""

_FAREWELL_S = 1.0
_REST_S = 1.0
_MOST_CONNECTIONS = 4096
_MOST_ARRIVING = 512
"""Of them, who have asked for nothing yet: each has a quarter of a MiB where TLS is asked for."""

_MOST_FILES = 65_536
_BAD_TEXT = "Invalid UTF-8"


def listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; OSError if none can."""
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen()  # whoever comes before it is served waits, and is not turned away
    except OSError:
        found.close()
        raise
    return found


def url_of(found: socket.socket, *, secure: bool = False) -> str:
    """Return where a listener is reached, as ``http://127.0.0.1:29511``."""
    host, port = found.getsockname()[:2]
    return f"http{'s' * secure}://{f'[{host}]' if ':' in host else host}:{port}"


@asynccontextmanager
async def served(application: Any, *found: socket.socket, **options: Any) -> AsyncIterator[None]:
    """Serve an ASGI application at listeners, with more of uvicorn's options."""
    _allow_files()
    logging.getLogger("uvicorn.error").addFilter(_in_one_line)
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="error",  # what it has to say beside is of whoever connects, as often as they do
        access_log=False,
        lifespan="off",
        server_header=False,
        **options,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=list(found)))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """A server that leaves signals to us, and takes no more at once than there are files for.

    Who comes when all places are taken has that of who has been longest without asking for
    anything: strangers keep nobody out who has something to ask.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen until :meth:`shutdown`."""
        await self.lifespan.startup()
        self.servers = []  # of asyncio: TLS has a minute there to agree, and is not counted
        self._arriving: dict[_Prompt, asyncio.Task[None]] = {}
        self._taking = [asyncio.create_task(self._take(found)) for found in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nobody any more, and let go of those who are there."""
        tasks = *self._taking, *self._arriving.values()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().shutdown(sockets)

    async def _take(self, found: socket.socket) -> None:
        """Take connections for ever, or close them at once."""
        found.setblocking(False)
        found.listen(self.config.backlog)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(0)  # where a crowd comes, nothing below waits for anything
            try:
                connection, _ = await loop.sock_accept(found)
            except ConnectionError:
                continue  # gone already
            except OSError as error:
                _log.warning("cannot take a connection: %s", error.strerror)
                await asyncio.sleep(_REST_S)
                continue
            if self._has_place():
                protocol = _Prompt(self.config, self.server_state, self.lifespan.state)
                self._arriving[protocol] = asyncio.create_task(self._let_in(protocol, connection))
            else:
                connection.close()

    def _has_place(self) -> bool:
        """Say whether there is a place, or was one to be had."""
        there = self.server_state.connections | self._arriving.keys()
        if len(there) < _most_connections() and len(self._arriving) < _MOST_ARRIVING:
            return True
        longest = next(iter(self._arriving), None)
        if longest is not None:
            self._arriving.pop(longest).cancel()
        return longest is not None

    async def _let_in(self, protocol: "_Prompt", connection: socket.socket) -> None:
        """Have who comes agree on TLS, where that is asked for, and then say what it wants."""
        tls = self.config.ssl
        limits = {"ssl_handshake_timeout": PROMPT_S, "ssl_shutdown_timeout": _FAREWELL_S}
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=tls, **(limits if tls else {})
            )
            async with asyncio.timeout(PROMPT_S):
                await protocol.has_asked.wait()
        except OSError:
            pass  # it is no TLS, or not in time
        finally:
            self._arriving.pop(protocol, None)
            if not protocol.has_asked.is_set() and protocol.transport:
                protocol.transport.abort()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


class _Prompt(H11Protocol):
    """HTTP for those who come to the point.

    Attributes
    ----------
    has_asked : asyncio.Event
        Set once a request has come, or nobody is there any more.
    """

    def __init__(self, *of_server: Any) -> None:
        super().__init__(*of_server)
        self.has_asked = asyncio.Event()
        self._has_waited = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(transport)
        self.loop.call_later(PROMPT_S, self._look)

    def data_received(self, data: bytes) -> None:
        """Take what comes."""
        super().data_received(data)
        if self.cycle is not None or self.transport.get_protocol() is not self:
            self.has_asked.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nobody is there."""
        super().connection_lost(exc)
        self.has_asked.set()

    def _look(self) -> None:
        """Close what has been in the midst of a request since the last look, not yet all there."""
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        waits = is_answered and self.timeout_keep_alive_task is None
        if waits and self._has_waited:
            self.transport.abort()
            return
        self._has_waited = waits
        self.loop.call_later(PROMPT_S, self._look)


def _most_connections() -> int:
    """Return how many there may be, so that files are left for all else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if files < 0 else min(_MOST_CONNECTIONS, files // 2)


def _allow_files() -> None:
    """Have as many files open as the system lets this process have."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if most < 0 else min(_MOST_FILES, most)
    if 0 <= files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _in_one_line(record: logging.LogRecord) -> bool:
    """Leave out where in the server it was met that a browser has sent what is no text."""
    if _BAD_TEXT in str(record.msg):
        record.exc_info = None
    return True
