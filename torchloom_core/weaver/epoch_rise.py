"""Has a Weaver take a higher epoch where workers have obeyed one above its own.

Workers reject what comes under a lower epoch than they know, as of a Weaver of the past. One whose
state was lost, on a host whose clock is behind the lost one's, starts with such an epoch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from torchloom_core.errors import BrokerError, OutrankedError, TorchloomError
from torchloom_core.transport.state_bucket import epoch_by_the_clock
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.steering import LighthouseView

_log = logging.getLogger(__name__)

_FURTHEST = 10 * 366 * 86_400
"""A worker is not believed that names an epoch further ahead of this host's clock, seconds."""

_MOST_RISES = 3
_AHEAD = 1000
"""Other workers may know a little more than the first that speaks."""


class EpochRises:
    """Counts how often one process has taken a higher epoch on the word of workers.

    Parameters
    ----------
    clock_epoch : callable
        Returns the epoch that this host's clock gives. What is taken stays within ten years of
        it, so that after a forged one a later Weaver, whose clock has gone on, can go above it.

    Attributes
    ----------
    above : int
        The next epoch has to be higher.
    """

    def __init__(self, clock_epoch: Callable[[], int] = epoch_by_the_clock) -> None:
        self._clock_epoch = clock_epoch
        self._count = 0
        self.above = 0

    @property
    def believed(self) -> int:
        """The highest epoch of which a worker is believed that it was obeyed."""
        return self._clock_epoch() + _FURTHEST if self._count < _MOST_RISES else 0

    def note(self, error: OutrankedError) -> None:
        """Take that the epoch was too low, and say so."""
        self._count += 1
        self.above = max(error.epoch, min(error.epoch + _AHEAD, self._clock_epoch() + _FURTHEST))
        _log.warning("%s; starting again under an epoch above %d", error, self.above)


class EpochWatch:
    """Looks at the epochs that workers, and the lighthouse, say they have obeyed.

    Parameters
    ----------
    epoch : int
        Of this Weaver.
    believed : int
        A higher one is not believed.
    newest : callable
        Returns the newest epoch that a Weaver has claimed in the bucket.
    end : callable
        Ends this life of the Weaver.
    complain : callable
        ``(who, text)``: says it in the log, now and then.
    """

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
        self._looking: asyncio.Task[None] | None = None

    def is_outranked_by(self, message: Hello | LighthouseView) -> bool:
        """Say whether this Weaver ends over the message, which is then the next one's to take."""
        if message.epoch <= self._epoch:
            return False
        who = message.worker if isinstance(message, Hello) else "the lighthouse"
        if message.epoch > self._believed:
            self._warn(
                who,
                f"{who} has obeyed a Weaver of epoch {message.epoch}, this one is of {self._epoch} "
                f"and takes no higher one: {who} rejects what it is told until it is started again",
            )
            return False
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(who, message.epoch))
        return True

    async def _look(self, who: str, epoch: int) -> None:
        try:
            if await self._newest() > self._epoch:
                return  # a later Weaver of this run: the bus ends this one
        except BrokerError as error:
            _log.warning("%s", error)
            return
        text = (
            f"{who} has obeyed a Weaver of epoch {epoch}, this one is of {self._epoch}: the run's "
            "state was lost, and this host's clock is behind (compare it with the workers', NTP)"
        )
        self._end(OutrankedError(text, epoch))
