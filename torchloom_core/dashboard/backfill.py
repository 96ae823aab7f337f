"""Read what the dashboard missed of a standby task from a trajectory on this host.

A standby task may end while the dashboard or the broker is away; its pieces are sent only once.
"""

import asyncio
import logging
from pathlib import Path

from torchloom_core.errors import StateError
from torchloom_core.trajectory.layout import newest_epoch
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.trajectory.standby_tasks import newest_recorded
from torchloom_core.wire.operator import Status

_ON_ITS_WAY_S = 2.0
"""What workers have told while the broker was away is on record so much later."""

_LONGEST_REST_S = 16.0
"""Between two looks while ever more is heard: a long record takes a while to read."""

_log = logging.getLogger(__name__)


class Backfill:
    """Looks into the record where a standby task may have told more than was heard.

    Parameters
    ----------
    root : Path
        The run's trajectory, wherever a Weaver on this host would have it.
    *kinds : Pieces
        What was heard; each becomes what is on record.
    """

    def __init__(self, root: Path, *kinds: Pieces) -> None:
        self._root, self._kinds = root, kinds
        self._verbs = {pieces.verb for pieces in kinds}
        self._epoch = -1
        self._under_way: set[str] = set()
        self._half_read: set[str] = set()
        self._unheard: set[str] = set()
        self._looked_for: set[str] = set()
        self._rest_s = _ON_ITS_WAY_S
        self._is_due = asyncio.Event()

    def compare(self, status: Status) -> None:
        """Take what the Weaver says is under way; of another Weaver something may be missed."""
        under_way = {flight.cause for flight in status.flights if flight.verb in self._verbs}
        known = self._under_way | {
            pieces.standby_task for pieces in self._kinds if pieces.standby_task
        }
        heard = {pieces.standby_task for pieces in self._kinds if pieces.end} - self._half_read
        self._unheard = known - under_way - heard
        if status.epoch != self._epoch or self._unheard - self._looked_for:
            self._is_due.set()
        self._epoch, self._under_way = status.epoch, under_way

    async def miss(self) -> None:
        """Take that something may have been told that was not heard."""
        self._is_due.set()

    async def follow(self) -> None:
        """Look whenever it is due, for ever."""
        while True:
            await self._is_due.wait()
            await asyncio.sleep(self._rest_s)
            self._is_due.clear()
            self._looked_for = self._unheard  # once: one that was killed has no end on record
            await self._look()

    async def _look(self) -> None:
        before, self._half_read = self._versions(), self._under_way
        found = [type(pieces)() for pieces in self._kinds]
        try:
            # Another run's of that name, or one of long ago, has another epoch.
            if newest_epoch(self._root) != self._epoch:
                return
            await asyncio.to_thread(newest_recorded, self._root, *found)
        except (StateError, OSError) as error:  # it may be another user's
            _log.warning("what was tried before is not shown: %s", error)
            return
        is_settled = before == self._versions()  # else more was heard meanwhile
        if is_settled:
            for heard, recorded in zip(self._kinds, found, strict=True):
                if recorded.standby_task == heard.standby_task and recorded.points < heard.points:
                    is_settled = False  # the record is behind
                elif recorded.version:
                    heard.become(recorded)
        self._rest_s = _ON_ITS_WAY_S if is_settled else min(2 * self._rest_s, _LONGEST_REST_S)
        if not is_settled:
            self._is_due.set()

    def _versions(self) -> list[int]:
        return [pieces.version for pieces in self._kinds]
