"""Workers that send more than they may: dropped at once, then named, then cut.

What is too much is dropped as it comes in, but the Weaver and the server still read it. A worker
that goes on, or sends much more, loses its credentials; it trains on, and its name is blocked until
a person undoes it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from torchloom_core.floor.errors import TorchloomError
from torchloom_core.live.transport.inbound import OVER_LIMIT
from torchloom_core.wire import subjects
from torchloom_core.wire.decisions import Notice

_log = logging.getLogger(__name__)

_PAUSE_S = 3.0
"""Without a dropped message for this long, a flood is over."""

_AT_ONCE = 1000
"""A worker of which so many messages are dropped between two ticks is cut without waiting."""

Cut = Callable[[str], Awaitable[str]]
"""Revokes a worker's credentials, and returns what was done in one line."""


class FloodWatch:
    """Counts what is dropped; :meth:`check` is called at each tick, with a monotonic time.

    A worker is cut by ``cut`` after a flood of ``cut_after_s`` seconds; 0: never.
    """

    def __init__(self, cut_after_s: float) -> None:
        self._cut_after_s = cut_after_s
        self._dropped: Counter[str] = Counter()
        self._floods: dict[str, tuple[float, float]] = {}
        self._cutting: dict[str, asyncio.Task[None]] = {}
        self.cut: Cut | None = None

    def dropped(self, subject: str, reason: str) -> None:
        """Count a message that was dropped."""
        worker = subjects.worker_of(subject)
        if reason == OVER_LIMIT and worker:  # the lighthouse's has none
            self._dropped[worker] += 1
            if self._dropped[worker] == _AT_ONCE:
                self._begin_cut(worker)

    def check(self, now_s: float) -> Iterator[Notice]:
        """Yield a notice of each flood that began; cut a worker that goes on."""
        for worker, (_, last_s) in list(self._floods.items()):
            if now_s - last_s > _PAUSE_S and worker not in self._dropped:
                del self._floods[worker]
        dropped, self._dropped = self._dropped, Counter()
        for worker, count in dropped.items():
            began_s, _ = self._floods.get(worker, (now_s, now_s))
            if worker not in self._floods:
                text = f"{worker} sends more than it may: {count} messages dropped so far"
                yield Notice(kind="flood", text=text, worker=worker)
            self._floods[worker] = began_s, now_s
            if now_s - began_s >= self._cut_after_s:
                del self._floods[worker]
                self._begin_cut(worker)

    def _begin_cut(self, worker: str) -> None:
        if self.cut is None or not self._cut_after_s or worker in self._cutting:
            return
        self._cutting[worker] = task = asyncio.create_task(self._carry_out(worker, self.cut))
        task.add_done_callback(lambda _: self._cutting.pop(worker))

    async def _carry_out(self, worker: str, cut: Cut) -> None:
        try:
            text = await cut(worker)
        except TorchloomError as error:
            text = f"cannot be cut: {error}"
        _log.warning("%s went on sending more than it may: %s", worker, text)
        await asyncio.sleep(_PAUSE_S)  # meanwhile what was on its way is dropped
