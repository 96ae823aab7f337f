"""Read the results of a standby task that the dashboard missed from a trajectory on this host.

A standby task may end while the dashboard or the broker is down; its pieces are sent only once.
"""

import asyncio
import logging
from pathlib import Path

from torchloom_core.floor.errors import StateError
from torchloom_core.live.trajectory.layout import newest_epoch
from torchloom_core.live.trajectory.standby_tasks import Pieces, newest_recorded
from torchloom_core.wire.operator import Status

_DELAY_S = 2.0
"""Reports that workers sent while the broker was down are recorded this much later."""

_LONGEST_PAUSE_S = 16.0
"""The longest pause between two reads while more arrives: a long record takes time."""

_log = logging.getLogger(__name__)


class Backfill:
    """Reads the record whenever results of a standby task may have been missed.

    ``root`` is where a Weaver on this host would have the run's trajectory. ``kinds`` are the
    results received so far; they are replaced by the recorded ones.
    """

    def __init__(self, root: Path, *kinds: Pieces) -> None:
        self._root, self._kinds = root, kinds
        self._verbs = {pieces.verb for pieces in kinds}
        self._epoch = -1
        self._under_way: set[str] = set()
        self._half_read: set[str] = set()
        self._missing: set[str] = set()
        self._searched: set[str] = set()
        self._pause_s = _DELAY_S
        self._is_due = asyncio.Event()

    def compare(self, status: Status) -> None:
        """Compare with the commands under way; a new Weaver may mean that something is missing."""
        under_way = {flight.cause for flight in status.flights if flight.verb in self._verbs}
        known = self._under_way | {
            pieces.standby_task for pieces in self._kinds if pieces.standby_task
        }
        ended = {pieces.standby_task for pieces in self._kinds if pieces.end} - self._half_read
        self._missing = known - under_way - ended
        if status.epoch != self._epoch or self._missing - self._searched:
            self._is_due.set()
        self._epoch, self._under_way = status.epoch, under_way

    async def miss(self) -> None:
        """Note that reports may have been missed."""
        self._is_due.set()

    async def follow(self) -> None:
        """Read whenever it is due, for ever."""
        while True:
            await self._is_due.wait()
            await asyncio.sleep(self._pause_s)
            self._is_due.clear()
            self._searched = self._missing  # once: a task that was killed has no recorded end
            await self._read()

    async def _read(self) -> None:
        before, self._half_read = self._versions(), self._under_way
        found = [type(pieces)() for pieces in self._kinds]
        try:
            # An earlier run of that name has another epoch.
            if newest_epoch(self._root) != self._epoch:
                return
            await asyncio.to_thread(newest_recorded, self._root, *found)
        except (StateError, OSError) as error:  # it may belong to another user
            _log.warning("earlier previews and landscapes are not shown: %s", error)
            return
        is_settled = before == self._versions()  # else more arrived meanwhile
        if is_settled:
            for received, recorded in zip(self._kinds, found, strict=True):
                if (
                    recorded.standby_task == received.standby_task
                    and recorded.points < received.points
                ):
                    is_settled = False  # the record is behind
                elif recorded.version:
                    received.take_over(recorded)
        self._pause_s = _DELAY_S if is_settled else min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if not is_settled:
            self._is_due.set()

    def _versions(self) -> list[int]:
        return [pieces.version for pieces in self._kinds]
