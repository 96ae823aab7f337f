"""A TCP proxy in front of a server: slow, cut off, answering 503, or gone."""

import contextlib
import socket
import threading

_AT_ONCE = 1 << 16
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class FaultyProxy:
    """Listens on ``port`` while it is entered.

    Attributes
    ----------
    bytes_per_s : float
        What a connection carries; 0: no limit.
    is_unavailable : bool
        Whether it answers all requests itself, with 503.
    cut_after : int
        The bytes after which it cuts all connections, once; 0: it does not.
    """

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition("/")[2].partition(":")
        self._server = (host, int(port))
        self.port = 0
        self.bytes_per_s, self.is_unavailable, self.cut_after = 0.0, False, 0
        self._open: set[socket.socket] = set()
        self._gone = threading.Event()

    def __enter__(self):
        self.appear()
        return self

    def __exit__(self, *_):
        self.vanish()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def appear(self) -> None:
        """Listen, at the same port as before."""
        self._gone = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept, self._listener, self._gone)

    def vanish(self) -> None:
        """Cut all connections, and take no other."""
        self._gone.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        while self._open:
            one = self._open.pop()
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _start(self, target, *args) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()

    def _accept(self, listener, gone) -> None:
        with contextlib.suppress(OSError):
            while not gone.is_set():
                client = listener.accept()[0]
                self._open.add(client)
                if self.is_unavailable:
                    self._start(self._refuse, client)
                    continue
                server = socket.create_connection(self._server)
                self._open.add(server)
                self._start(self._carry, client, server, gone)
                self._start(self._carry, server, client, gone)

    def _refuse(self, client) -> None:
        with contextlib.suppress(OSError):
            client.recv(_AT_ONCE)
            client.sendall(_UNAVAILABLE)
            while client.recv(_AT_ONCE):
                pass

    def _carry(self, source, target, gone) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_AT_ONCE):
                if self.bytes_per_s:
                    gone.wait(len(data) / self.bytes_per_s)
                if self.cut_after:
                    self.cut_after -= min(len(data), self.cut_after)
                    if not self.cut_after:
                        self.cut()
                        return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
