"""The frames between the link in the trainer and its sidecar, and the socket they use.

A frame is four bytes of length, big-endian, and one msgpack message. The messages are those
of :mod:`torchloom_core.wire.messages`, and those below.
"""

import signal
import socket
import struct
import threading
from typing import Annotated

import msgspec

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.capabilities import decode_open
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.commands import Ack, Command
from torchloom_core.wire.limits import (
    MAX_METRIC_NAME,
    MAX_METRICS,
    Count,
    FileText,
    Id,
    Int64,
    LongText,
    ShortText,
    Stamp,
    Step,
    Text,
)
from torchloom_core.wire.messages import FieldValue, Hello, JoinFile, Note, PauseState, WorkerState
from torchloom_threadlet.flight_recorder import Collectives

MAX_FRAME_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")
_MAX_WAITING_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16
_MAX_ROWS = 1 << 16
_MAX_PATH_BYTES = 4096
_SIGNALS = 64

INCARNATION_OVER = signal.SIGUSR1
"""The signal for a sidecar whose loom is closed: it does not wait for the process's end."""

COMPUTE = "compute"
"""The phase of a trainer that waits for nothing."""

_Metrics = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=MAX_METRIC_NAME)], float],
    msgspec.Meta(max_length=MAX_METRICS),
]
"""The names are checked once per batch, by the heartbeat."""


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """The identity with which a sidecar enrols; the next sidecar gets it as well.

    The link stores the seed before the Weaver is asked: a name is granted to one key only.
    ``jwt`` is empty until the Weaver has answered.
    """

    seed: ShortText
    jwt: FileText = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """The counts of telemetry batches sent and samples dropped in this incarnation."""

    batches: Count = 0
    dropped: Count = 0


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """The first frame to a new sidecar.

    ``join_path``, in the file system's bytes, is read again while the broker is away: a
    restarted Weaver may have moved. ``stack_signal`` makes the trainer write its stacks to the
    inherited descriptor; 0 where that is not possible. It is sent to ``link_thread``, the native
    id of the link's thread, so that it interrupts no system call of the training.
    ``unset`` is what to set so that two processes do not get one name
    (:class:`~torchloom_threadlet.identity.Identity`).
    """

    hello: Hello
    join: JoinFile
    join_path: Annotated[bytes, msgspec.Meta(max_length=_MAX_PATH_BYTES)]
    keys: Keys | None = None
    sent: Sent = Sent()
    stack_signal: Annotated[int, msgspec.Meta(ge=0, le=_SIGNALS)] = 0
    link_thread: Count = 0
    unset: ShortText = ""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """What the trainer does: it computes, or waits for others.

    ``since_ns``: monotonic.
    ``quorum_id``: the present quorum, -1 before the first.
    """

    name: ShortText
    since_ns: Stamp
    quorum_id: Int64 = -1

    def fields(self, now_ns: int) -> dict[str, FieldValue]:
        """Return the phase as fields of a note."""
        phase_s = (now_ns - self.since_ns) / 1e9
        return {"phase": self.name, "phase_s": phase_s, "quorum_id": self.quorum_id}


class NamedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """Work that the script or a framework has named, such as ``compile``, and its bound.

    ``since_ns``, ``until_ns``: when it began, and when its bound ends. Monotonic.
    """

    name: ShortText
    since_ns: Stamp
    until_ns: Stamp


class Samples(msgspec.Struct, frozen=True, kw_only=True, tag="samples"):
    """The trainer's progress, and ``rows`` of (Unix time in ns, metrics) since the last frame.

    ``progress_ns`` and ``looked_ns``, when this was true, are on the monotonic clock, which both
    processes share. ``phase`` is None where no adapter records it, and ``named`` outside any named
    phase; of nested phases it is the one with the latest end. ``thread`` is the training thread's
    :func:`threading.get_ident`, 0 where it is unknown. ``gpu`` is the UUID of the GPU that it
    trains on, as NVML writes it, empty where none was seen.
    """

    state: WorkerState
    step: Step
    progress_ns: Stamp
    looked_ns: Stamp = 0
    phase: Phase | None = None
    named: NamedPhase | None = None
    thread: Annotated[int, msgspec.Meta(ge=0)] = 0
    gpu: ShortText = ""
    dropped: Count = 0
    rows: Annotated[list[tuple[Stamp, _Metrics]], msgspec.Meta(max_length=_MAX_ROWS)] = []


class Admission(msgspec.Struct, frozen=True, kw_only=True, tag="admission"):
    """How the first attempt to enrol ended: a restarted trainer waits for it.

    ``unwanted`` is why the Weaver does not admit workers on this node, else empty.
    """

    unwanted: str = ""


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """The broker has stored the final ack of this copy of ``command``."""

    command: Id
    epoch: Count


class FlightRequest(msgspec.Struct, frozen=True, kw_only=True, tag="flight_asked"):
    """The sidecar requests the Flight Recorder's dump."""


class Flight(msgspec.Struct, frozen=True, kw_only=True, tag="flight"):
    """The Flight Recorder's dump, empty where there is none, and its summary."""

    text: LongText
    collectives: Collectives | None = None

    def fields(self) -> dict[str, FieldValue]:
        """Return the summary as fields of a note."""
        return msgspec.structs.asdict(self.collectives) if self.collectives else {}


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The trainer ends: by itself, or because of ``error``."""

    error: Text = ""


class GoodbyeReceived(msgspec.Struct, frozen=True, kw_only=True, tag="heard"):
    """The sidecar has the trainer's goodbye, and will report its end."""


ToSidecar = Attach | Samples | Hello | Ack | Note | Flight | Goodbye
ToLink = Command | PauseState | Keys | Admission | Sent | Stored | FlightRequest | GoodbyeReceived

_encoder = msgspec.msgpack.Encoder()
_to_sidecar: msgspec.msgpack.Decoder[ToSidecar] = msgspec.msgpack.Decoder(
    ToSidecar, dec_hook=decode_open
)
_to_link: msgspec.msgpack.Decoder[ToLink] = msgspec.msgpack.Decoder(ToLink, dec_hook=decode_open)


def pack(frame: msgspec.Struct) -> bytes:
    """Return a frame as bytes for the socket.

    Raises MessageError if it cannot be encoded, or is too large.
    """
    try:
        body = _encoder.encode(frame)
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"{type(frame).__name__}: {error}") from None
    if len(body) > MAX_FRAME_BYTES:
        what = type(frame).__name__
        raise MessageError(f"{what}: need at most {MAX_FRAME_BYTES} bytes, was {len(body)}")
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Cuts a stream of bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take received bytes and return the bodies that are complete.

        Raises MessageError if a length is too large.
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
    except UNREADABLE as error:
        raise MessageError(f"frame from the trainer: {error}") from None


def for_link(body: bytes) -> ToLink:
    """Return the frame that the sidecar sent, or raise MessageError."""
    try:
        return _to_link.decode(body)
    except UNREADABLE as error:
        raise MessageError(f"frame from the sidecar: {error}") from None


class Wire:
    """The trainer's end of the socket: any thread may send, and none waits for the peer."""

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
        """Whether the sidecar reads so slowly that samples should be dropped."""
        return len(self._unsent) > _MAX_WAITING_BYTES

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for the socket to take them."""
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Send what the socket takes now and buffer the rest; a dead peer is no error here."""
        with self._lock:
            self._unsent += frame
            self._push()

    def push(self) -> None:
        """Send buffered bytes, as far as the socket takes them."""
        with self._lock:
            self._push()

    def receive(self) -> list[bytes]:
        """Return the bodies of the frames that have arrived.

        Raises EOFError if the sidecar has gone.
        Raises MessageError if a length is too large, so that the rest of the stream cannot be read.
        """
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from None
        if not data:
            raise EOFError("closed by the sidecar")
        return self._unpacker.feed(data)

    def close(self) -> None:
        """Close the socket."""
        with self._lock:
            self._socket.close()

    def _push(self) -> None:
        if self._pushing:
            # Called by a signal handler during a push: the outer call sends this too.
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
