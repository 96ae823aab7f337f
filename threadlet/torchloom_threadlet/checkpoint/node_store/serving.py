"""What a store does for a client that has its secret, and only for that."""

import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import msgspec

from torchloom_core.checkpoints.layout import is_file_of_checkpoint, read_folder
from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_threadlet.checkpoint.node_store.room import Refused, Room
from torchloom_threadlet.checkpoint.node_store.wire import (
    CHUNK,
    LONGEST_REQUEST,
    Closed,
    Reply,
    Request,
    Wire,
    answer_to,
)

_PROOF_S, _REQUEST_S, _CHUNK_S = 5.0, 15.0, 120.0
"""Time in which a client must prove that it has the secret, ask, and send the next chunk."""

_SAME_FILE_S = 5.0
_REFUSALS = (Refused, OSError)


class Service:
    """Serves the folder of a node's memory; a thread for each client.

    Attributes
    ----------
    used_s : float
        When a client last asked or sent something, monotonic seconds.
    has_ended : bool
        Whether the run has ended.
    """

    def __init__(self, storage: LocalFolder, secret: str) -> None:
        self.used_s = time.monotonic()
        self.has_ended = False
        self._storage, self._secret = storage, secret
        self._room = Room(storage.path)
        self._writing: set[str] = set()
        self._written = threading.Condition()

    def serve(self, link: socket.socket) -> None:
        """Serve one client until it closes the connection, or breaks a rule."""
        with (
            closing(Wire(link)) as wire,
            suppress(OSError, ValueError, msgspec.MsgspecError),
        ):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = secrets.token_hex(32).encode()
            link.sendall(challenge + b"\n")
            expected = answer_to(self._secret, challenge)
            if not hmac.compare_digest(_receive_soon(link, len(expected) + 1), expected + b"\n"):
                return
            wire.send(Reply())
            while True:
                link.settimeout(_REQUEST_S)
                line = wire.line(LONGEST_REQUEST)
                request = msgspec.json.decode(line, type=Request)
                self.used_s = time.monotonic()
                link.settimeout(_CHUNK_S)
                self._answer(request, wire)

    def _answer(self, request: Request, wire: Wire) -> None:
        match request.do:
            case "read":
                self._read(request, wire)
            case "write":
                self._write(request, wire)
            case _:
                wire.send(self._reply(request))

    def _reply(self, request: Request) -> Reply:
        try:
            match request.do:
                case "folders":
                    return Reply(names=tuple(filter(read_folder, self._storage.folders())))
                case "files":
                    return Reply(names=tuple(self._storage.files(_folder(request.name))))
                case "remove":
                    self._storage.remove(_folder(request.name))
                    return Reply()
                case "end":
                    self.has_ended = True
                    return Reply()
            raise Refused(f"need a known request, was {request.do[:40]!r}")
        except _REFUSALS as error:
            return _refusal(request, error)

    def _read(self, request: Request, wire: Wire) -> None:
        try:
            file = self._storage.open(_file(request.name))
        except _REFUSALS as error:
            wire.send(_refusal(request, error))
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            count = max(0, min(request.count, size - request.at))
            wire.send(Reply(count=count, size=size))
            _send(wire.link, file.fileno(), request.at, count)

    def _write(self, request: Request, wire: Wire) -> None:
        try:
            name = _file(request.name)
            self._room.take(0)
            with self._alone(name):
                wire.send(Reply())
                try:
                    self._storage.write(name, self._while_there_is_room(wire))
                except _REFUSALS as error:
                    wire.send(_refusal(request, error))
                    raise Closed("what follows are chunks of a file that is not written") from None
            wire.send(Reply())
        except Refused as error:
            wire.send(_refusal(request, error))

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Let one client at a time write a file."""
        with self._written:
            if not self._written.wait_for(lambda: name not in self._writing, _SAME_FILE_S):
                raise Refused("another client writes it")
            self._writing.add(name)
        try:
            yield
        finally:
            with self._written:
                self._writing.remove(name)
                self._written.notify_all()

    def _while_there_is_room(self, wire: Wire) -> Iterator[memoryview]:
        for data in wire.chunks():
            self.used_s = time.monotonic()
            self._room.take(len(data))
            yield data


def _send(link: socket.socket, handle: int, at: int, count: int) -> None:
    """Send bytes of a file. ``sendfile`` sends 64 kB at a time, which takes longer."""
    buffer = memoryview(bytearray(min(count, CHUNK)))
    while count:
        received = os.preadv(handle, [buffer[: min(count, CHUNK)]], at)
        if not received:
            raise Closed("the file has become shorter")
        link.sendall(buffer[:received])
        at, count = at + received, count - received


def _receive_soon(link: socket.socket, count: int) -> bytes:
    """Return at most so many bytes, however slowly they come; OSError if it takes too long."""
    end_s, data = time.monotonic() + _PROOF_S, b""
    while len(data) < count:
        link.settimeout(max(end_s - time.monotonic(), 1e-3))
        more = link.recv(count - len(data))
        if not more:
            break
        data += more
    return data


def _refusal(request: Request, error: Exception) -> Reply:
    text = getattr(error, "strerror", "") or str(error)
    return Reply(
        error=f"{request.name}: {text}".removeprefix(": "),
        is_missing=isinstance(error, FileNotFoundError),
    )


def _folder(name: str) -> str:
    if read_folder(name) is None:
        raise Refused("need the folder of a checkpoint")
    return name


def _file(name: str) -> str:
    folder, _, file = name.partition("/")
    if read_folder(folder) is None or not is_file_of_checkpoint(file):
        raise Refused("need a file of a checkpoint")
    return name
