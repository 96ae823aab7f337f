"""Answers roll calls for the sidecar: which are a Weaver's, and how often to answer."""

import asyncio
import logging
from collections.abc import Callable

from nats.aio.msg import Msg

from torchloom_core.floor.errors import MessageError
from torchloom_core.wire.codec import decode_json
from torchloom_core.wire.messages import RollCall

ANSWER_EVERY_S = 5.0

_logger = logging.getLogger(__name__)


class RollCalls:
    """Answers the Weaver's roll calls, always the last one, at a limited rate.

    A server's answer to another client can arrive on the roll calls' subject, if that is the
    reply subject of the question; so only a roll call of this run is answered. One of a lower
    epoch is answered, too: the hello contains the highest known epoch, and the Weaver exceeds it.

    ``every_s``: calls within this time of an answer are answered together at its end.
    ``epoch``: the highest epoch of a Weaver so far.
    """

    def __init__(
        self,
        run: str,
        worker: str,
        answer: Callable[[], None],
        every_s: float = ANSWER_EVERY_S,
    ) -> None:
        self._run = run
        self._worker = worker
        self._answer = answer
        self._every_s = every_s
        self.epoch = 0
        self._due_s = 0.0
        self._waiting: asyncio.TimerHandle | None = None

    def record_epoch(self, epoch: int) -> None:
        """Record a Weaver's epoch."""
        self.epoch = max(self.epoch, epoch)

    async def take(self, message: Msg) -> None:
        """Answer a message, now or later, if it is a roll call for this worker."""
        try:
            call = decode_json(RollCall, message.data, "roll call")
        except MessageError as error:
            _logger.debug("no roll call: %s", error)
            return
        if call.run != self._run:
            return
        self.record_epoch(call.epoch)
        if call.workers and self._worker not in call.workers:
            return
        if self._waiting is None:
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_at(max(self._due_s, loop.time()), self._send_answer)

    def _send_answer(self) -> None:
        self._waiting = None
        self._due_s = asyncio.get_running_loop().time() + self._every_s
        self._answer()
