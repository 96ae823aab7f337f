"""Heartbeats whose answers are kept back, and how the end of their senders is seen.

A Manager sends its next heartbeat 100 ms after the answer to the last one. The answer is kept
back, and the call watched: where it is cut off, the Manager's process has ended or its Manager
was shut down, and the group is counted out at once. In the moment between two heartbeats the
connection is looked at instead.
"""

import asyncio
from collections.abc import Callable

from torchloom_core.lighthouse.connections import Homes, far_ends
from torchloom_core.lighthouse.pauses import Pauses
from torchloom_core.lighthouse.quorum import Electorate


class Heartbeats:
    """The calls by which groups say that they live.

    Parameters
    ----------
    electorate : Electorate
        Who is told that they do.
    hold_s : float
        How long an answer is kept back, seconds; 0: not at all, and no end is seen.
    now_s : callable
        The time.
    ended : callable
        Called with the replica id of a group that has ended.
    """

    def __init__(
        self,
        electorate: Electorate,
        hold_s: float,
        now_s: Callable[[], float],
        ended: Callable[[str], None],
    ) -> None:
        self._electorate = electorate
        self._hold_s = hold_s
        self._now_s = now_s
        self._ended = ended
        self._newest_calls: dict[str, object] = {}
        self._held_back: set[asyncio.Future[None]] = set()
        self._pauses: dict[str, Pauses] = {}
        self._homes = Homes()

    async def take(self, replica_id: str, peer: str) -> None:
        """Take note that a group lives, and return late: if it ends meanwhile, that is seen."""
        if not self._hold_s:
            self._electorate.beat(replica_id, self._now_s())
        elif self._homes.is_own(replica_id, peer):
            await self._take_own(replica_id)
        else:
            await self._take_another(replica_id, peer)

    async def _take_own(self, replica_id: str) -> None:
        self._electorate.beat(replica_id, self._now_s())
        pauses = self._pauses.setdefault(replica_id, Pauses())
        pauses.end()
        call = self._newest_calls[replica_id] = object()
        try:
            await self._hold_back()
        except asyncio.CancelledError:
            is_newest = self._newest_calls.get(replica_id) is call
            if is_newest and not self._homes.move(replica_id):  # it has connected anew
                self._end(replica_id)
            raise
        finally:
            if self._newest_calls.get(replica_id) is call:
                del self._newest_calls[replica_id]
        if replica_id not in self._newest_calls:
            pauses.begin()

    async def _take_another(self, replica_id: str, peer: str) -> None:
        """Take one over a connection that is not the group's own; it may become that."""
        try:
            with self._homes.another(replica_id, peer):
                await self._hold_back()
        except asyncio.CancelledError:
            if self._homes.is_own(replica_id, peer):
                self._end(replica_id)
            raise
        speaks = replica_id in self._newest_calls or replica_id not in self._pauses
        if not speaks and self._homes.is_own(replica_id, peer):  # by now
            self._pauses[replica_id].begin()

    def asks(self, replica_id: str, peer: str) -> None:
        """Know from where a group asks for a quorum."""
        self._homes.asks(replica_id, peer)

    def overlook(self, asleep_s: float, now_s: float) -> None:
        """Count a time in which the lighthouse did not run for nobody's silence."""
        for pauses in self._pauses.values():
            pauses.overlook(asleep_s, now_s)

    def look_for_ends(self) -> None:
        """Find whose next heartbeat is due and whose connection is gone."""
        now_s = self._now_s()
        due = [(r, pauses) for r, pauses in self._pauses.items() if pauses.is_due(now_s)]
        there = far_ends() if due else None
        for replica_id, pauses in due:
            is_gone = there is not None and self._homes.is_gone(replica_id, there)
            if is_gone and self._homes.move(replica_id):  # it speaks on another one by now
                pauses.end()
                self._electorate.beat(replica_id, now_s)
            elif is_gone or pauses.is_over(now_s):
                self._end(replica_id)
            elif replica_id not in self._electorate.heartbeats:
                self._forget(replica_id)
        self._homes.forget_all_but(self._electorate.heartbeats.keys())

    def close(self) -> None:
        """Answer all that is kept back: a call that we cut off says nothing of its caller."""
        for wake in self._held_back:
            _wake(wake)

    async def _hold_back(self) -> None:
        loop = asyncio.get_running_loop()
        wake = loop.create_future()
        timer = loop.call_later(self._hold_s, _wake, wake)
        self._held_back.add(wake)
        try:
            await wake
        finally:
            timer.cancel()
            self._held_back.discard(wake)

    def _end(self, replica_id: str) -> None:
        self._forget(replica_id)
        self._ended(replica_id)

    def _forget(self, replica_id: str) -> None:
        self._pauses.pop(replica_id, None)
        self._homes.forget(replica_id)


def _wake(waits: asyncio.Future[None]) -> None:
    if not waits.done():
        waits.set_result(None)
