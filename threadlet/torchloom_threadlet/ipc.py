"""What the link in the trainer and its sidecar say to each other, and the socket they use.

A frame is four bytes of length, big-endian, and one msgpack message. The messages are those
of :mod:`torchloom_core.wire.messages` where there is one, and those below where there is not.
"""

import signal
import socket
import struct
import threading
from typing import Annotated

import msgspec

from torchloom_core.errors import MessageError
from torchloom_core.wire.codec import UNREADABLE
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
from torchloom_core.wire.messages import (
    Ack,
    Command,
    FieldValue,
    Hello,
    Hold,
    JoinFile,
    Note,
    WorkerState,
)
from torchloom_threadlet.flight_recorder import Collectives

MAX_FRAME_BYTES = 4 << 20
_LENGTH = struct.Struct(">I")
_MAX_WAITING_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16
_MAX_ROWS = 1 << 16
_MAX_PATH_BYTES = 4096
_SIGNALS = 64

INCARNATION_OVER = signal.SIGUSR1
"""Tells a sidecar whose loom is closed not to wait for the process's end."""

COMPUTE = "compute"
"""The phase of a trainer that waits for nobody."""

_Metrics = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=MAX_METRIC_NAME)], float],
    msgspec.Meta(max_length=MAX_METRICS),
]
"""The heartbeat looks at the names: once a batch, not once a row."""


class Keys(msgspec.Struct, frozen=True, kw_only=True, tag="keys"):
    """The identity a sidecar enrols with, which the next one keeps.

    The link has the seed before the Weaver is asked: a name is granted to one key only. ``jwt``
    is empty until the Weaver has answered.
    """

    seed: ShortText
    jwt: FileText = ""


class Sent(msgspec.Struct, frozen=True, kw_only=True, tag="sent"):
    """How many telemetry batches left, and samples were dropped, in this incarnation."""

    batches: Count = 0
    dropped: Count = 0


class Attach(msgspec.Struct, frozen=True, kw_only=True, tag="attach"):
    """The first frame to a new sidecar: everything it has to know.

    ``join_path``, as the file system spells it, is looked at again while the broker is away: a
    restarted Weaver may have moved. ``stack_signal`` makes the trainer write its stacks to the
    descriptor that was passed along; 0 where that is not possible. ``link_thread`` is the native
    id of the link's thread, to which it is sent: no system call of the training is interrupted.
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
    """What the trainer is at: it computes, or waits for others.

    Attributes
    ----------
    name : str
        What it waits for, ``quorum``, ``allreduce`` or ``commit``; ``compute`` if for nothing.
    since_ns : int
        Monotonic.
    quorum_id : int
        The quorum that it is a member of, -1 before the first.
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

    Attributes
    ----------
    name : str
        What it is called.
    since_ns, until_ns : int
        When it began, and by when it has to be over. Monotonic.
    """

    name: ShortText
    since_ns: Stamp
    until_ns: Stamp


class Samples(msgspec.Struct, frozen=True, kw_only=True, tag="samples"):
    """The trainer's progress, and ``rows`` of (Unix time in ns, metrics) since the last frame.

    ``progress_ns`` and ``looked_ns``, when this was true, are on the monotonic clock, which both
    processes share. ``phase`` is None where nothing stamps it, and ``named`` outside any named
    phase; of nested ones it is the one with the latest end. ``thread`` is the training thread's
    :func:`threading.get_ident`, 0 where it is not known.
    """

    state: WorkerState
    step: Step
    progress_ns: Stamp
    looked_ns: Stamp = 0
    phase: Phase | None = None
    named: NamedPhase | None = None
    thread: Annotated[int, msgspec.Meta(ge=0)] = 0
    dropped: Count = 0
    rows: Annotated[list[tuple[Stamp, _Metrics]], msgspec.Meta(max_length=_MAX_ROWS)] = []


class Admission(msgspec.Struct, frozen=True, kw_only=True, tag="admission"):
    """How the first attempt to enrol ended: a trainer that was started again waits to hear it.

    ``unwanted`` is why the Weaver wants nobody on this node, empty however else it ended.
    """

    unwanted: str = ""


class Stored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """The final ack of this copy of ``command`` is safe with the broker."""

    command: Id
    epoch: Count


class FlightAsked(msgspec.Struct, frozen=True, kw_only=True, tag="flight_asked"):
    """The sidecar wants the Flight Recorder's dump."""


class Flight(msgspec.Struct, frozen=True, kw_only=True, tag="flight"):
    """The Flight Recorder's dump, empty where there is none, and what it says in short."""

    text: LongText
    collectives: Collectives | None = None

    def fields(self) -> dict[str, FieldValue]:
        """Return what it says in short as fields of a note."""
        return msgspec.structs.asdict(self.collectives) if self.collectives else {}


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag="goodbye"):
    """The trainer says that it ends: by itself, or because of ``error``."""

    error: Text = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True, tag="heard"):
    """The sidecar has the trainer's goodbye, and will tell of its end."""


ToSidecar = Attach | Samples | Hello | Ack | Note | Flight | Goodbye
ToLink = Command | Hold | Keys | Admission | Sent | Stored | FlightAsked | Heard

_encoder = msgspec.msgpack.Encoder()
_to_sidecar: msgspec.msgpack.Decoder[ToSidecar] = msgspec.msgpack.Decoder(ToSidecar)
_to_link: msgspec.msgpack.Decoder[ToLink] = msgspec.msgpack.Decoder(ToLink)


def pack(frame: msgspec.Struct) -> bytes:
    """Return a frame as bytes for the socket.

    Raises
    ------
    MessageError
        If it holds what cannot be encoded, or too much.
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
    except UNREADABLE as error:
        raise MessageError(f"frame from the trainer: {error}") from None


def for_link(body: bytes) -> ToLink:
    """Return the frame that the sidecar sent, or raise MessageError."""
    try:
        return _to_link.decode(body)
    except UNREADABLE as error:
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

    def send(self, frame: bytes) -> None:
        """Send what the socket takes now and keep the rest; a dead peer is no error here."""
        with self._lock:
            self._unsent += frame
            self._push()

    def push(self) -> None:
        """Send what was kept, as far as the socket takes it."""
        with self._lock:
            self._push()

    def receive(self) -> list[bytes]:
        """Return the bodies of the frames that have arrived.

        Raises
        ------
        EOFError
            If the sidecar has gone.
        MessageError
            If a length cannot be one, so that nothing after it can be read.
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
