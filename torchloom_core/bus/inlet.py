"""What comes in from workers: decoded, checked against its subject, stamped, handed on."""

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from nats.aio.msg import Msg

from torchloom_core import subjects
from torchloom_core.clock import SECOND_NS, Clock
from torchloom_core.codec import MAX_MESSAGE_BYTES, decode_ack, decode_event, decode_telemetry
from torchloom_core.errors import MessageError
from torchloom_core.messages import Ack, Telemetry, WorkerEvent

_log = logging.getLogger(__name__)

_LOG_EVERY_NS = 60 * SECOND_NS
_LOGGED_SUBJECTS = 1024
_REASON_CHARACTERS = 300

Receive = Callable[[Telemetry | WorkerEvent | Ack, int], None]
Malformed = Callable[[str, str], None]


class _FromWorker(Protocol):
    @property
    def run(self) -> str: ...
    @property
    def worker(self) -> str: ...


_M = TypeVar("_M", bound=_FromWorker)


class Inlet:
    """Gives every good message to ``receive``, and every other one to ``malformed``.

    Attributes
    ----------
    malformed : int
        Messages that were dropped so far.
    """

    def __init__(self, run: str, clock: Clock, receive: Receive, malformed: Malformed) -> None:
        self._run = run
        self._clock = clock
        self._receive = receive
        self._tell_malformed = malformed
        self._logged_ns: dict[str, int] = {}
        self._telemetry = subjects.telemetry(run, "")
        self._event = subjects.event(run, "")
        self._ack = subjects.ack(run, "")
        self.malformed = 0

    async def take_telemetry(self, msg: Msg) -> None:
        """Take one telemetry batch."""
        self._take(msg, self._telemetry, decode_telemetry)

    def take_report(self, msg: Msg) -> None:
        """Take one ack, hello, exit or note."""
        if msg.subject.startswith(self._ack):
            self._take(msg, self._ack, decode_ack)
        else:
            self._take(msg, self._event, decode_event)

    def reject(self, subject: str, reason: str) -> None:
        """Count a message that is none, and log it unless its subject was logged just now."""
        self.malformed += 1
        line = " ".join(reason.split())[:_REASON_CHARACTERS]
        now_ns = self._clock.now_ns()
        if now_ns >= self._logged_ns.get(subject, now_ns - _LOG_EVERY_NS) + _LOG_EVERY_NS:
            if len(self._logged_ns) >= _LOGGED_SUBJECTS:
                self._logged_ns.clear()
            self._logged_ns[subject] = now_ns
            _log.warning("dropped a message on %s: %s", subject, line)
        self._tell_malformed(subject, line)

    def _take(self, msg: Msg, prefix: str, decode: Callable[[bytes], _M]) -> None:
        ts_recv_ns = self._clock.now_ns()
        if len(msg.data) > MAX_MESSAGE_BYTES:
            self.reject(msg.subject, f"need at most {MAX_MESSAGE_BYTES} bytes, was {len(msg.data)}")
            return
        try:
            message = decode(msg.data)
        except MessageError as error:
            self.reject(msg.subject, str(error))
            return
        if message.run != self._run or prefix + message.worker != msg.subject:
            self.reject(
                msg.subject,
                f"need the run and worker of the subject, was {message.run!r}, {message.worker!r}",
            )
            return
        self._receive(message, ts_recv_ns)  # type: ignore[arg-type]
