"""Messages from workers: decoded, checked against their subject, stamped, and passed on."""

import logging
from collections.abc import Callable

from nats.aio.msg import Msg

from torchloom_core.floor.clock import Clock
from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import RateLimitedLog, plain_line
from torchloom_core.floor.quota import Quota
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import (
    MAX_MESSAGE_BYTES,
    Bytes,
    decode_ack,
    decode_event,
    decode_json,
    decode_telemetry,
)
from torchloom_core.wire.commands import Ack
from torchloom_core.wire.limits import MAX_WORKERS
from torchloom_core.wire.messages import Hello, Telemetry, WorkerEvent
from torchloom_core.wire.placement import Position
from torchloom_core.wire.steering import LighthouseView

_log = logging.getLogger(__name__)

_BATCHES = {"per_s": 100.0, "bytes_per_s": 4e6, "rest_s": 16.0}
_REPORTS = {"per_s": 40.0, "bytes_per_s": 1e6, "rest_s": 30.0}
_ACKS = {"per_s": 200.0, "bytes_per_s": 1e6, "rest_s": 5.0}
"""Rate limits of a worker. A sidecar sends one or two batches per second; after an outage of the
broker it sends up to a thousand notes, which may be dumps. It sends three acks for each command,
of which a person may cause 50 a second."""

_VIEWS = {"per_s": 20.0, "bytes_per_s": 1e6, "rest_s": 16.0}
"""Rate limits of a lighthouse: a view per change of the quorum, 50 bytes per group."""

OVER_LIMIT = "its sender sends more than it may"
"""Why a message over one of these limits is dropped."""

Receive = Callable[[Telemetry | WorkerEvent | Ack | LighthouseView, int, Bytes], bool]
"""Called with a message, the time it was received and its bytes, which may be a part of what was
read at once; False: redeliver it."""

Malformed = Callable[[str, str], None]

_FromWorker = Telemetry | WorkerEvent | Ack


class Inlet:
    """Passes valid messages to ``receive``, and others to ``malformed``.

    Telemetry is decoded by ``decode_batch``.
    """

    def __init__(
        self,
        run: str,
        clock: Clock,
        receive: Receive,
        malformed: Malformed,
        decode_batch: Callable[[Bytes], Telemetry] = decode_telemetry,
    ) -> None:
        self._decode_batch = decode_batch
        self._run = run
        self._clock = clock
        self._receive = receive
        self._report_malformed = malformed
        self._limited_log = RateLimitedLog(_log, clock.now_ns)
        self._telemetry, self._event, self._bulk, self._ack = (
            subject_of(run, "", "").removesuffix(".")
            for subject_of in (subjects.telemetry, subjects.event, subjects.bulk, subjects.ack)
        )
        self._batches = Quota(**_BATCHES)
        self._reports = Quota(**_REPORTS)
        self._acks = Quota(**_ACKS)
        self._views = Quota(**_VIEWS)
        self._placed: dict[str, tuple[int, Position]] = {}

    @property
    def malformed(self) -> int:
        """Number of dropped messages so far."""
        return self._limited_log.count

    def forget(self, worker: str) -> None:
        """Forget the placement of a worker."""
        self._placed.pop(worker, None)

    def take_telemetry(self, subject: str, data: Bytes) -> None:
        """Take one telemetry batch."""
        self._take(subject, data, self._telemetry, self._decode_batch, self._batches)

    def take_report(self, msg: Msg, delivered_before: bool = False) -> bool:
        """Take one ack, hello, exit or note; False: redeliver it.

        A hello that was ``delivered_before`` to an earlier Weaver is ignored: new ones are
        requested.
        """
        if msg.subject.startswith(self._ack):
            return self._take(msg.subject, msg.data, self._ack, decode_ack, self._acks)
        large = msg.subject.startswith(self._bulk)
        prefix = self._bulk if large else self._event
        return self._take(
            msg.subject, msg.data, prefix, decode_event, self._reports, delivered_before
        )

    def take_view(self, msg: Msg) -> None:
        """Take a view of the lighthouse."""
        ts_recv_ns = self._clock.now_ns()
        try:
            _admit(msg.subject, msg.data, self._views, ts_recv_ns)
            view = decode_json(LighthouseView, msg.data, "view of a lighthouse")
        except MessageError as error:
            self.reject(msg.subject, str(error))
            return
        if view.run == self._run:
            self._receive(view, ts_recv_ns, msg.data)
        else:
            self.reject(msg.subject, f"need the run of the subject, was {view.run!r}")

    def reject(self, subject: str, reason: str) -> None:
        """Count a malformed message, and log it, rate-limited by subject."""
        self._limited_log.add(subject, f"dropped a message on {subject}: {reason}")
        self._report_malformed(subject, plain_line(reason))

    def _take(
        self,
        subject: str,
        data: Bytes,
        prefix: str,
        decode: Callable[[Bytes], _FromWorker],
        allowed: Quota,
        delivered_before: bool = False,
    ) -> bool:
        ts_recv_ns = self._clock.now_ns()
        try:
            _admit(subject, data, allowed, ts_recv_ns)
            message = decode(data)
            self._check(message, prefix, subject)
        except MessageError as error:
            self.reject(subject, str(error))
            return True
        if delivered_before and isinstance(message, Hello):
            return True
        return self._receive(message, ts_recv_ns, data)

    def _check(self, message: _FromWorker, prefix: str, subject: str) -> None:
        """Raise MessageError unless the subject is the message's, and a hello moves no process.

        The server verifies the worker's id alone: so one process keeps its first placement until
        a later generation.
        """
        name, incarnation = message.worker, message.incarnation
        if message.run != self._run or f"{prefix}{name}.{incarnation}" != subject:
            need = "need the run, worker and incarnation of the subject"
            raise MessageError(f"{need}, was {message.run!r}, {name!r}, {incarnation}")
        if not isinstance(message, Hello):
            return
        position = message.position()
        before, first = self._placed.get(name, (-1, position))
        if before != incarnation or message.generation > first.generation:
            if name in self._placed or len(self._placed) < MAX_WORKERS:
                self._placed[name] = incarnation, position
        elif position != first:
            raise MessageError(f"need the placement of its first hello, {first}, was {position}")


def _admit(subject: str, data: Bytes, allowed: Quota, ts_recv_ns: int) -> None:
    """Raise MessageError if the message is too large, or one too many of its sender."""
    if not allowed.takes(subject, ts_recv_ns, len(data)):
        raise MessageError(OVER_LIMIT)
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"need at most {MAX_MESSAGE_BYTES} bytes, was {len(data)}")
