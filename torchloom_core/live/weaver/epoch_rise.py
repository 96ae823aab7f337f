"""Raise a Weaver's epoch when workers have obeyed a higher one.

Workers reject commands of a lower epoch than the highest they have seen, as those of an outdated
Weaver. A Weaver whose state was lost starts with such an epoch if its host's clock is behind.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from torchloom_core.floor.errors import BrokerError, OutrankedError, TorchloomError
from torchloom_core.live.transport.state_bucket import epoch_by_the_clock
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.steering import LighthouseView

_log = logging.getLogger(__name__)

_FURTHEST = 10 * 366 * 86_400
"""An epoch further ahead of this host's clock is not believed, seconds."""

_MOST_RISES = 3
_AHEAD = 1000
"""Added to a worker's epoch: other workers may have obeyed a slightly higher one."""


class EpochRises:
    """Counts how often a process has raised its epoch; the next one has to be above ``above``."""

    def __init__(self, clock_epoch: Callable[[], int] = epoch_by_the_clock) -> None:
        self._clock_epoch = clock_epoch
        self._count = 0
        self.above = 0

    @property
    def believed(self) -> int:
        """The highest epoch that is believed when a worker reports it."""
        return self._clock_epoch() + _FURTHEST if self._count < _MOST_RISES else 0

    def note(self, error: OutrankedError) -> None:
        """Raise the lower bound of the next epoch, and log it."""
        self._count += 1
        self.above = max(error.epoch, min(error.epoch + _AHEAD, self._clock_epoch() + _FURTHEST))
        _log.warning("%s; restarting under an epoch above %d", error, self.above)


class EpochWatch:
    """Compares the epochs that workers and the lighthouse have obeyed with this Weaver's."""

    def __init__(
        self,
        epoch: int,
        believed: int,
        newest: Callable[[], Awaitable[int]],
        end: Callable[[TorchloomError], None],
        warn: Callable[[str, str], None],
    ) -> None:
        self._epoch = epoch
        self._believed = believed
        self._newest = newest
        self._end = end
        self._warn = warn
        self._checking: asyncio.Task[None] | None = None

    def is_outranked_by(self, message: Hello | LighthouseView) -> bool:
        """Return whether this Weaver ends because of the message; the next Weaver handles it."""
        if message.epoch <= self._epoch:
            return False
        sender = message.worker if isinstance(message, Hello) else "the lighthouse"
        if message.epoch > self._believed:
            self._warn(
                sender,
                f"{sender} has obeyed epoch {message.epoch}, above this Weaver's {self._epoch}, "
                f"which cannot be raised that far: {sender} rejects commands; restart {sender}",
            )
            return False
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(sender, message.epoch))
        return True

    async def _check(self, sender: str, epoch: int) -> None:
        try:
            if await self._newest() > self._epoch:
                return  # a later Weaver of this run: the bus ends this one
        except BrokerError as error:
            _log.warning("%s", error)
            return
        text = (
            f"{sender} has obeyed epoch {epoch}, above this Weaver's {self._epoch}: the run's "
            "state was lost, and this host's clock is behind (compare it with the workers', NTP)"
        )
        self._end(OutrankedError(text, epoch))
