"""Serve a web application beside what else a process does, until that ends."""

import asyncio
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn


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
async def served(application: Any, found: socket.socket, **options: Any) -> AsyncIterator[None]:
    """Serve an ASGI application at a listener, with more of uvicorn's options."""
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        **options,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[found]))
    try:
        yield
    finally:
        server.should_exit = True
        await task


class _Server(uvicorn.Server):
    """A server that leaves signals to us."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield
