"""The stream that carries a leader's trajectory files to its standbys, piece by piece."""

import re
from collections.abc import Sequence

import msgspec
import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.jetstream import JetStream
from torchloom_core.wire import subjects

PIECE_BYTES = 256 << 10
"""Largest piece of a file in one message."""

_AT_ONCE = 64
_STORED_S = 5
_WAIT_S = 0.25
_IDLE_S = 60.0
_FILE, _OFFSET, _CUT = "TL-File", "TL-Offset", "TL-Cut"
_NUMBER = re.compile(r"[0-9]{1,18}")
_NAME = re.compile(r"[a-z]+(-[0-9]{6,})?\.[a-z]+")
_SIZES = (1, 4, 16, 64)


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one file of an epoch's folder, from ``offset`` on; ``cut``: the file ended there."""

    epoch: int
    file: str
    offset: int
    data: bytes
    cut: bool = False


class RecordStream:
    """The stream ``TL_RECORD_<run>``, bounded by bytes and age: the oldest pieces are deleted.

    ``servers``: how many the cluster has, if that is known.
    """

    def __init__(self, link: Connection, run: str, servers: int = 0) -> None:
        self._link = link
        self._servers = servers
        self._run = run
        self._name = subjects.record_stream(run)
        self._js: JetStreamContext = link.client.jetstream(timeout=_STORED_S)
        self._reader: JetStreamContext.PullSubscription | None = None
        self._delivered = 0

    async def make(self, most_bytes: int, age_s: float) -> None:
        """Make the stream, smaller if the server has less room; BrokerError if it has none."""
        streams = JetStream(self._link, self._run, self._servers)
        for part in _SIZES:
            size = most_bytes // part
            accepts = subjects.record(self._run, "*")
            if await streams.make_stream(self._name, accepts, max_age=age_s, max_bytes=size):
                return
        raise BrokerError(f"stream {self._name}: the server has no room for it")

    async def append(self, piece: Piece) -> None:
        """Store one piece; BrokerError if the server did not confirm it."""
        headers = {_FILE: piece.file, _OFFSET: str(piece.offset)}
        if piece.cut:
            headers[_CUT] = "1"
        subject = subjects.record(self._run, str(piece.epoch))
        try:
            if not self._link.is_connected:
                raise nats.errors.ConnectionReconnectingError
            await self._js.publish(subject, piece.data, timeout=_STORED_S, headers=headers)
        except (nats.errors.Error, TimeoutError) as error:
            raise self._failed(error) from None

    async def last(self) -> tuple[int, str]:
        """Return the last sequence number, and what distinguishes this stream from a later one."""
        try:
            info = await self._js.stream_info(self._name)
        except nats.js.errors.NotFoundError:
            return 0, ""
        except (nats.errors.Error, TimeoutError) as error:
            raise self._failed(error) from None
        return info.state.last_seq, str(info.created)

    async def read(self, after: int) -> Sequence[tuple[int, Piece | None]]:
        """Return the next pieces after a sequence number with theirs; None for an invalid one.

        Nothing if none comes within a moment; BrokerError if the stream cannot be read.
        """
        try:
            if self._reader is None:
                config = ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=after + 1,
                    ack_policy=AckPolicy.NONE,
                    inactive_threshold=_IDLE_S,
                    mem_storage=True,
                    num_replicas=1,
                )
                consumer = await self._js.add_consumer(self._name, config)
                self._reader = await self._js.pull_subscribe_bind(consumer.name, self._name)
                self._delivered = 0
            messages = await self._reader.fetch(_AT_ONCE, timeout=_WAIT_S)
        except TimeoutError:
            return ()
        except nats.errors.Error as error:
            self._reader = None
            raise self._failed(error) from None
        places = [m.metadata.sequence.consumer for m in messages]
        if places != list(range(self._delivered + 1, self._delivered + 1 + len(places))):
            self._reader = None  # some were lost with a connection; they are read again
            return ()
        self._delivered += len(places)
        return [
            (m.metadata.sequence.stream, _piece(m.subject, m.headers, m.data)) for m in messages
        ]

    def _failed(self, error: Exception) -> BrokerError:
        return BrokerError(f"stream {self._name}: {str(error) or type(error).__name__}")

    def forget_place(self) -> None:
        """Read from another place next."""
        self._reader = None


def _piece(subject: str, headers: dict[str, str] | None, data: bytes) -> Piece | None:
    epoch, found = subject.rpartition(".")[2], headers or {}
    file, offset = found.get(_FILE, ""), found.get(_OFFSET, "")
    valid = _NUMBER.fullmatch(epoch) and _NAME.fullmatch(file) and _NUMBER.fullmatch(offset)
    if not valid:
        return None
    cut = _CUT in found
    return Piece(epoch=int(epoch), file=file, offset=int(offset), data=data, cut=cut)
