"""What client and store send each other: lines of JSON, and bytes of announced length."""

import hashlib
import hmac
import io
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec

from torchloom_core.wire.limits import Count

LONGEST_LINE = 1 << 22
LONGEST_REQUEST = 1024
CHUNK = 1 << 20
_LENGTH, _DIGEST = 8, 32


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What a client asks.

    ``do``: ``folders``, ``files`` of a folder, ``read`` ``count`` bytes of a file from ``at``,
    ``write`` a file, whose chunks follow, ``remove`` a folder, or ``end`` the store.
    """

    do: str
    name: str = ""
    at: Count = 0
    count: Count = 0


class Reply(msgspec.Struct, kw_only=True, frozen=True):
    """What the store answers: ``error`` if it refuses; ``count`` bytes of ``size`` follow."""

    error: str = ""
    is_missing: bool = False
    names: tuple[str, ...] = ()
    count: Count = 0
    size: Count = 0


class Closed(ConnectionError):
    """The other side has closed the connection."""


class Wire:
    """One side of a connection."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._file = io.BufferedReader(link.makefile("rb", buffering=0), 1 << 16)

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.link.close()

    @contextmanager
    def closed_by_errors(self) -> Iterator[None]:
        """Close the connection if the block raises."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def line(self, longest: int) -> bytes:
        """Return the next line; Closed if there is none, or it is too long."""
        line = self._file.readline(longest + 1)
        if not line.endswith(b"\n"):
            raise Closed("the connection has ended" if len(line) <= longest else "a line too long")
        return line[:-1]

    def send(self, message: Request | Reply) -> None:
        """Send a line."""
        self.link.sendall(msgspec.json.encode(message) + b"\n")

    def receive_into(self, view: memoryview) -> None:
        """Receive exactly as many bytes as the view has."""
        at = 0
        while at < len(view):
            count = self._file.readinto(view[at:])
            if not count:
                raise Closed("the connection has ended")
            at += count

    def send_chunks(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send chunks of bytes, and at the end their digest."""
        digest = hashlib.sha256()
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), CHUNK):
                data = view[at : at + CHUNK]
                self.link.sendall(len(data).to_bytes(_LENGTH, "big"))
                self.link.sendall(data)
                digest.update(data)
        self.link.sendall(bytes(_LENGTH) + digest.digest())

    def chunks(self) -> Iterator[memoryview]:
        """Yield the chunks that the other side sends; OSError if the digest is another."""
        digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
        header = memoryview(bytearray(_LENGTH))
        while True:
            self.receive_into(header)
            count = int.from_bytes(header, "big")
            if not count:
                break
            if count > CHUNK:
                raise Closed("a chunk too long")
            data = buffer[:count]
            self.receive_into(data)
            digest.update(data)
            yield data
        expected = memoryview(bytearray(_DIGEST))
        self.receive_into(expected)
        if not hmac.compare_digest(expected, digest.digest()):
            raise OSError("the bytes have another sha256 than was sent")


def answer_to(secret: str, challenge: bytes) -> bytes:
    """Return what proves that one has the secret."""
    return hmac.new(secret.encode(), challenge, hashlib.sha256).hexdigest().encode()
