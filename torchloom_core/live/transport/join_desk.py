"""Answers join requests one after the other, and asks those that come in a herd to come back.

An answer takes about a millisecond. Of 10,000 requests at once the last would have to wait longer
than its worker does, so that all would be asked again, and answered in vain.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import nats.errors
from nats.aio.msg import Msg

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.quota import Quota
from torchloom_core.live.transport.turns import Turns
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.messages import JoinReply, JoinRequest

_MOST_QUEUED_S = 1.0
"""How long a request may have to wait for its turn; a worker waits for two seconds or more."""

_FIRST_COST_S = 0.002
_NEWEST_SHARE = 0.05
_AT_WORK = 0.7
"""The share of its time for which the desk is given appointments; the rest is for newcomers."""

_MOST_AHEAD_S = 10.0
"""The latest appointment: to come back too early is cheap, to come back too late is not."""
_LATER = (1.0, 1.5)
_OVER_S = 5.0
"""A herd is over once nobody was turned away for so long."""

_PATIENCE_S = 2.0
_BURST_S = 1.0

_log = logging.getLogger(__name__)

Handler = Callable[[JoinRequest], Awaitable[JoinReply]]


class _Waiting(NamedTuple):
    msg: Msg
    request: JoinRequest
    until_s: float


class JoinDesk:
    """The queue of join requests, and the task that answers them, at most ``per_s`` a second.

    ``now_ns`` is for those who ask for the time; ``reject`` gets what is no request, ``report`` a
    notice when a herd comes and when it is over.
    """

    def __init__(
        self,
        handler: Handler,
        now_ns: Callable[[], int],
        reject: Callable[[str, str], None],
        report: Callable[[Notice], None],
        per_s: float = float("inf"),
    ) -> None:
        self._handler = handler
        self._now_ns = now_ns
        self._reject = reject
        self._report = report
        self._least_s = 1 / per_s
        self._quota = Quota(per_s=per_s, rest_s=max(_BURST_S, 2 / per_s))
        self._turns = Turns()
        self._waiting: deque[_Waiting] = deque()
        self._some = asyncio.Event()
        self._cost_s = _FIRST_COST_S
        self._next_s = 0.0
        self._herd_began_s: float | None = None
        self._turned_away_s = 0.0

    async def take(self, msg: Msg) -> None:
        """Queue a request, or answer it at once: if it is none, or if too many wait."""
        await self._turns.give()
        try:
            if not msg.data:
                return await _answer(msg, JoinReply(ts_ns=self._now_ns()))
            request = decode_json(JoinRequest, msg.data, "join request")
        except MessageError as error:
            self._reject(msg.subject, str(error))
            return await _answer(msg, JoinReply(error=plain_line(str(error))))
        now_s = asyncio.get_running_loop().time()
        queued_s = len(self._waiting) * self._each_s
        if queued_s > _MOST_QUEUED_S or not self._quota.takes("", self._now_ns()):
            return await _answer(msg, JoinReply(wait_s=self._turn_away(now_s, queued_s)))
        self._waiting.append(_Waiting(msg, request, now_s + (request.within_s or _PATIENCE_S)))
        self._some.set()
        return None

    async def run(self) -> None:
        """Answer until cancelled; a request whose worker waits no more is dropped."""
        loop = asyncio.get_running_loop()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if self._herd_began_s is None else _OVER_S):
                    await self._some.wait()
            self._some.clear()
            while self._waiting:
                msg, request, until_s = self._waiting.popleft()
                began_s = loop.time()
                if began_s > until_s:
                    continue
                try:
                    await _answer(msg, await self._handler(request))
                except Exception:  # noqa: BLE001 - the next worker may join
                    _log.exception("a join request of %s could not be answered", request.worker)
                await asyncio.sleep(0)
                # With all else that the loop does: that is how long the next one waits.
                self._cost_s += _NEWEST_SHARE * (loop.time() - began_s - self._cost_s)
            self._look(loop.time())

    @property
    def _each_s(self) -> float:
        """How long a request takes; longer if no more may be answered."""
        return max(self._cost_s, self._least_s)

    def _turn_away(self, now_s: float, queued_s: float) -> float:
        """Return after how many seconds the worker is to come back, each at another time."""
        if self._herd_began_s is None:
            self._herd_began_s = now_s
            rate = 1 / self._each_s
            text = f"many workers join at once: about {rate:.0f} a second can, the others later"
            self._report(Notice(kind="herd", text=text))
        self._turned_away_s = now_s
        self._next_s = max(self._next_s, now_s + queued_s) + self._each_s / _AT_WORK
        if self._next_s > now_s + _MOST_AHEAD_S:  # the first of the next round
            self._next_s = now_s + queued_s
        return (self._next_s - now_s) * random.uniform(*_LATER)

    def _look(self, now_s: float) -> None:
        began_s = self._herd_began_s
        if began_s is None or now_s < self._turned_away_s + _OVER_S:
            return
        took_s = self._turned_away_s - began_s
        text = f"no worker has to wait to join any more, after {took_s:.0f} s"
        self._report(Notice(kind="herd", text=text))
        self._herd_began_s = None


async def _answer(msg: Msg, reply: JoinReply) -> None:
    if msg.reply:
        with suppress(nats.errors.Error):  # its worker asks again
            await msg.respond(encode(reply))
