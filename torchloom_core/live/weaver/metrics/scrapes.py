"""The HTTP port of the metrics: as prometheus_client's own, but bounded against any client.

prometheus_client starts a thread for each connection, however many there are and however long one
says nothing, and prints a traceback when a client goes away.
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

from torchloom_core.floor.plain_text import RateLimitedLog, plain_line

_log = logging.getLogger(__name__)

_AT_ONCE = 32
"""Connections at once; of more the oldest is closed."""

_SILENT_S = 5.0


class _Server(ThreadingWSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * _AT_ONCE  # of 5 a client waits for seconds to connect

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > _AT_ONCE else None
            self._open.pop(oldest, None)
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread ends
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a connection to the metrics failed", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def listen(host: str, port: int, registry: CollectorRegistry) -> Callable[[], None]:
    """Answer scrapes in threads until the returned function is called; or raise OSError."""

    class Server(_Server):
        address_family = socket.getaddrinfo(host, port)[0][0]

    whole, limited_log = make_wsgi_app(registry), RateLimitedLog(_log)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return whole(environ, start_response)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - the next scrape may succeed
            why = plain_line(str(error)) or type(error).__name__
            limited_log.add("scrape", f"a scrape of the metrics failed: {why}")
            start_response("503 Service Unavailable", [])
            return [b""]

    server = make_server(host, port, answer, Server, handler_class=_Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end
