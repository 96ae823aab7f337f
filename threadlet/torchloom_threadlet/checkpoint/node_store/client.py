"""A :class:`~torchloom_core.checkpoints.storage.Storage` in the memory of another node."""

import errno
import io
import queue
import socket
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import msgspec

from torchloom_threadlet.checkpoint.node_store.address import StoreAddress
from torchloom_threadlet.checkpoint.node_store.wire import (
    LONGEST_LINE,
    Reply,
    Request,
    Wire,
    answer_to,
)

_CONNECT_S, _REPLY_S = 2.0, 10.0
_LONGEST_CHALLENGE = 128
_MOST_IDLE = 4
_AVOIDED_S = 30.0
"""A store that did not answer in time is not asked for so long: its node may be gone."""


class StoreClient:
    """A client of a node's store; several threads may use it. All methods raise OSError."""

    def __init__(self, address: StoreAddress, name: str) -> None:
        self.address = address
        self.name = name
        self._idle: queue.SimpleQueue[Wire] = queue.SimpleQueue()
        self._avoided_until_s = float("-inf")
        weakref.finalize(self, _close_all, self._idle)

    def folders(self) -> list[str]:
        """Return the names of the folders."""
        return list(self._ask(Request(do="folders")).names)

    def files(self, folder: str) -> list[str]:
        """Return the names of a folder's files."""
        return list(self._ask(Request(do="files", name=folder)).names)

    def open(self, name: str) -> BinaryIO:
        """Open a file to read: parts of it are fetched as they are read; it may be missing."""
        return cast(BinaryIO, _Opened(self, name))

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file: it is there whole afterwards, or not at all."""
        with self._begun(Request(do="write", name=name)) as (wire, _):
            try:
                wire.send_chunks(parts)
            except ConnectionError:
                self._reply(wire)  # why the store has closed the connection
                raise
            self._reply(wire)

    def remove(self, folder: str) -> None:
        """Remove a folder."""
        self._ask(Request(do="remove", name=folder))

    def lock(self, owner: str) -> str:
        """Grant it."""
        return ""

    def unlock(self) -> None:
        """Need nothing."""

    def end(self) -> None:
        """Have the store end once its trainers have."""
        self._ask(Request(do="end"))

    def size(self, name: str) -> int:
        """Return the bytes of a file."""
        return self._ask(Request(do="read", name=name)).size

    def fetch(self, name: str, at: int, view: memoryview) -> int:
        """Receive bytes of a file from a place on straight into a view; return how many.

        There are fewer than the view has only if the file ends.
        """
        request = Request(do="read", name=name, at=at, count=len(view))
        with self._begun(request) as (wire, reply):
            wanted = view[: reply.count]
            wire.receive_into(wanted)
            return len(wanted)

    def _ask(self, request: Request) -> Reply:
        with self._begun(request) as (_, reply):
            return reply

    @contextmanager
    def _begun(self, request: Request) -> Iterator[tuple[Wire, Reply]]:
        """Send a request, and give the connection and the first reply."""
        if time.monotonic() < self._avoided_until_s:
            raise TimeoutError(errno.ETIMEDOUT, "it did not answer in time")
        try:
            wire, reply = self._first_reply(request)
            if reply.error:
                self._keep(wire)
                raise _error(reply)
            with wire.closed_by_errors():
                yield wire, reply
        except TimeoutError:
            self._avoided_until_s = time.monotonic() + _AVOIDED_S
            raise
        self._keep(wire)

    def _first_reply(self, request: Request) -> tuple[Wire, Reply]:
        """Ask on an idle connection, or on a new one where the store has closed those."""
        while True:
            try:
                wire, is_new = self._idle.get_nowait(), False
            except queue.Empty:
                wire, is_new = self._connect(), True
            try:
                with wire.closed_by_errors():
                    wire.send(request)
                    return wire, self._line(wire)
            except ConnectionError:
                if is_new:
                    raise

    def _keep(self, wire: Wire) -> None:
        if self._idle.qsize() < _MOST_IDLE:
            self._idle.put(wire)
        else:
            wire.close()

    def _line(self, wire: Wire) -> Reply:
        try:
            return msgspec.json.decode(wire.line(LONGEST_LINE), type=Reply)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise OSError(f"{self.name}: {error}") from None

    def _reply(self, wire: Wire) -> Reply:
        reply = self._line(wire)
        if reply.error:
            raise _error(reply)
        return reply

    def _connect(self) -> Wire:
        host, port, secret = self.address
        link = socket.create_connection((host, port), _CONNECT_S)
        link.settimeout(_REPLY_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(link)
        with wire.closed_by_errors():
            challenge = wire.line(_LONGEST_CHALLENGE)
            link.sendall(answer_to(secret, challenge) + b"\n")
            self._reply(wire)
        return wire


def _close_all(wires: "queue.SimpleQueue[Wire]") -> None:
    with suppress(queue.Empty):
        while True:
            wires.get_nowait().close()


def _error(reply: Reply) -> OSError:
    return FileNotFoundError(reply.error) if reply.is_missing else OSError(reply.error)


class _Opened(io.RawIOBase):
    """A file of a store; its size is asked only where it is needed."""

    def __init__(self, client: StoreClient, name: str) -> None:
        self._client, self._name = client, name
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, at: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            at += self._at
        elif whence == io.SEEK_END:
            at += self._client.size(self._name)
        self._at = max(0, at)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        count = self._client.fetch(self._name, self._at, view) if len(view) else 0
        self._at += count
        return count

    def readall(self) -> bytes:
        data = bytearray(max(0, self._client.size(self._name) - self._at))
        count = self.readinto(data)
        return bytes(data[:count])
