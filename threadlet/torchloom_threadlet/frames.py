"""What the link in the trainer and its sidecar say to each other, and the socket they use.

A frame is four bytes of length, big-endian, and one msgpack message. The messages are those
of :mod:`torchloom_core.messages` where there is one, and those below where there is not.
"""

import socket
import struct
import threading

import msgspec

from torchloom_core.errors import MessageError
from torchloom_core.messages import Ack, Command, Hello, JoinFile, Note, WorkerState

MAX_FRAME_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")
_MAX_WAITING_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """The identity a sidecar enrols with, which the next one keeps.

    The link has the seed before the Weaver is asked: a name is granted to one key only. ``jwt``
    is empty until the Weaver has answered.
    """

    seed: str
    jwt: str = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """How many telemetry batches left, and samples were dropped, in this incarnation."""

    batches: int = 0
    dropped: int = 0


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """The first frame to a new sidecar: everything it has to know.

    ``join_path`` is looked at again while the broker is away: a restarted Weaver may have
    moved. ``stack_signal`` makes the trainer write its stacks to the descriptor that was
    passed along; 0 where that is not possible.
    """

    hello: Hello
    join: JoinFile
    join_path: str
    keys: Keys | None = None
    sent: Sent = Sent()
    stack_signal: int = 0


class Samples(msgspec.Struct, frozen=True, kw_only=True, tag="samples"):
    """The trainer's progress, and ``rows`` of (Unix time in ns, metrics) since the last frame.

    ``progress_ns`` is on the monotonic clock, which both processes share.
    """

    state: WorkerState
    step: int
    progress_ns: int
    dropped: int = 0
    rows: list[tuple[int, dict[str, float]]] = []


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """The final ack of this copy of ``command`` is safe with the broker."""

    command: str
    epoch: int


class FlightAsked(msgspec.Struct, frozen=True, kw_only=True, tag="flight_asked"):
    """The sidecar wants the Flight Recorder's dump."""


class Flight(msgspec.Struct, frozen=True, kw_only=True, tag="flight"):
    """The Flight Recorder's dump, empty where there is none."""

    text: str


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The trainer says that it ends: by itself, or because of ``error``."""

    error: str = ""


ToSidecar = Attach | Samples | Hello | Ack | Note | Flight | Goodbye
ToLink = Command | Keys | Sent | Stored | FlightAsked

_encoder = msgspec.msgpack.Encoder()
_to_sidecar: msgspec.msgpack.Decoder[ToSidecar] = msgspec.msgpack.Decoder(ToSidecar)
_to_link: msgspec.msgpack.Decoder[ToLink] = msgspec.msgpack.Decoder(ToLink)


def pack(frame: msgspec.Struct) -> bytes:
    """Return a frame as bytes for the socket."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes and return the bodies that are complete.

        Raises
        ------
        MessageError
            If a length cannot be one.
        """
        self._bytes += data
        bodies = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if length > MAX_FRAME_BYTES:
                raise MessageError(f"frame: need at most {MAX_FRAME_BYTES} bytes, was {length}")
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            bodies.append(bytes(self._bytes[_LENGTH.size : end]))
            del self._bytes[:end]
        return bodies


def for_sidecar(body: bytes) -> ToSidecar:
    """Return the frame that the link sent, or raise MessageError."""
    try:
        return _to_sidecar.decode(body)
    except msgspec.DecodeError as error:
        raise MessageError(f"frame from the trainer: {error}") from None


def for_link(body: bytes) -> ToLink:
    """Return the frame that the sidecar sent, or raise MessageError."""
    try:
        return _to_link.decode(body)
    except msgspec.DecodeError as error:
        raise MessageError(f"frame from the sidecar: {error}") from None


class Wire:
    """The trainer's end of the socket: any thread sends, none of them ever waits for the peer."""

    def __init__(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        self._socket = peer
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._lock = threading.RLock()
        self._pushing = False

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    @property
    def congested(self) -> bool:
        """Whether the sidecar takes in so little that samples are better dropped."""
        return len(self._unsent) > _MAX_WAITING_BYTES

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._unsent)

    def send(self, frame: msgspec.Struct) -> None:
        """Send what the socket takes now and keep the rest; a dead peer is no error here."""
        with self._lock:
            self._unsent += pack(frame)
            self._push()

    def push(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        with self._lock:
            self._push()

    def receive(self) -> list[ToLink]:
        """Return the frames that have arrived.

        Raises
        ------
        EOFError
            If the sidecar has gone.
        MessageError
            If it sent nonsense.
        """
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from None
        if not data:
            raise EOFError("closed by the sidecar")
        return [for_link(body) for body in self._unpacker.feed(data)]

    def close(self) -> None:
        """Close the socket."""
        with self._lock:
            self._socket.close()

    def _push(self) -> None:
        if self._pushing:
            # Called by a signal handler from within: the outer call sends this too.
            return
        self._pushing = True
        try:
            while self._unsent:
                sent = self._socket.send(self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            # The link's thread sees the end of the stream and starts another sidecar.
            self._unsent.clear()
        finally:
            self._pushing = False
