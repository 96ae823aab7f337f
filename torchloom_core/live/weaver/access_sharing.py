"""Share who has access between the hosts whose embedded brokers form a cluster.

Each server has a list of its own of what is revoked. The Weaver of each host, leader or standby, or
``torchloom broker run`` where there is none, merges its list with that in the run's bucket. What
workers were granted is stored by the leader alone, which grants it, and read by the standbys.
"""

import asyncio
import logging
from typing import NoReturn

import msgspec

from torchloom_core.floor.errors import BrokerError, StateError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.jetstream import JetStream
from torchloom_core.live.transport.lease import Lease
from torchloom_core.live.transport.security.grants import MOST_GRANTS, Grant, Grants
from torchloom_core.live.transport.security.register import Shared
from torchloom_core.live.transport.state_bucket import StateBucket
from torchloom_core.wire.codec import UNREADABLE

_log = logging.getLogger(__name__)

_KEY = "access"
_GRANTS = "granted"
_EVERY_S = 1.0

PAGE = 1000
"""Grants in one entry of the bucket, about 100 bytes each."""

MOST_SHARED = MOST_GRANTS // 2
"""Fewer than a host remembers: what is read again displaces no newer grant."""

_page = msgspec.json.Decoder(list[Grant])


class AccessSharing:
    """Merges one host's lists and the bucket's."""

    def __init__(self, state: StateBucket, lease: Lease, broker: EmbeddedBroker) -> None:
        self._state = state
        self._broker = broker
        self._lease = lease
        self._grants = SharedGrants(state, broker.credentials.grants)
        self._one = asyncio.Lock()

    async def run(self) -> None:
        """Merge every second, until cancelled."""
        while True:
            try:
                await self.merge()
            except (BrokerError, StateError) as error:
                _log.warning("who has access is not shared with the other hosts: %s", error)
            await asyncio.sleep(_EVERY_S)

    async def merge(self) -> None:
        """Merge all lists once; or BrokerError, StateError."""
        async with self._one:
            await merge_access(self._state, self._broker)
            if not self._lease.is_held:
                await self._grants.read()
            elif self._lease.is_sure:
                await self._grants.write()


async def follow_access(run: str, broker: EmbeddedBroker) -> NoReturn:
    """Merge the lists of a host without a Weaver every second, until cancelled."""
    limited_log = RateLimitedLog(_log)
    while True:
        try:
            link = await Connection.open(
                broker.urls_from_here,
                creds=broker.credentials.weaver_creds,
                tls=broker.tls,
                name=f"torchloom-broker-{run}",
                inbox_prefix="_INBOX",
                in_order=True,
            )
            try:
                state = StateBucket(link, run, JetStream(link, run, broker.servers))
                await state.make()
                while True:
                    await merge_access(state, broker)
                    await asyncio.sleep(_EVERY_S)
            finally:
                await link.close()
        except (BrokerError, StateError) as error:
            limited_log.add("", f"who has access is not shared with the other hosts: {error}")
            await asyncio.sleep(_EVERY_S)


async def merge_access(state: StateBucket, broker: EmbeddedBroker) -> None:
    """Merge this host's list of people and of what is revoked; or BrokerError, StateError."""
    register = broker.credentials.register

    async def merged(data: bytes | None) -> bytes | None:
        stored = _decoded(data)
        if register.merge(stored):
            await asyncio.to_thread(broker.reload)
        own = register.shared()
        return msgspec.json.encode(own) if own != stored else None

    await state.change(_KEY, merged)


class SharedGrants:
    """The grants in the bucket, by numbered pages; the last one grows, and the oldest are emptied.

    A leader that dies takes at most the last second of them along.
    """

    def __init__(self, state: StateBucket, grants: Grants) -> None:
        self._state = state
        self._grants = grants
        self._page = -1
        self._on_page: list[Grant] = []
        self._stored: int | None = None

    async def read(self) -> None:
        """Take in what the leader has granted since."""
        self._stored = None
        if self._page < 0:
            await self._read_all()
        while len(self._take(await self._state.get(f"{_GRANTS}.{self._page}"))) == PAGE:
            self._page += 1

    async def write(self) -> None:
        """Store what this host has granted since; at first all that the bucket lacks."""
        if self._stored is None:
            known = await self._read_all()
            new = [one for one in self._grants.newest(len(self._grants)) if one not in known]
        else:
            new = self._grants.newest(self._grants.added - self._stored)
        added, self._stored = self._grants.added, None
        while new:
            room = PAGE - len(self._on_page)
            page, new = [*self._on_page, *new[:room]], new[room:]
            await self._state.put(f"{_GRANTS}.{self._page}", msgspec.json.encode(page))
            self._on_page = page
            if len(page) == PAGE:
                oldest = self._page - MOST_SHARED // PAGE
                self._page, self._on_page = self._page + 1, []
                if oldest >= 0:
                    await self._state.put(f"{_GRANTS}.{oldest}", b"")
        self._stored = added

    async def _read_all(self) -> set[Grant]:
        pages = {
            int(number): data
            for number, data in (await self._state.items(_GRANTS)).items()
            if number.isdigit()
        }
        known: set[Grant] = set()
        for self._page in sorted(pages) or [0]:
            known |= set(self._take(pages.get(self._page)))
        if len(self._on_page) == PAGE:
            self._page, self._on_page = self._page + 1, []
        return known

    def _take(self, data: bytes | None) -> list[Grant]:
        try:
            self._on_page = _page.decode(data) if data else []
        except UNREADABLE:
            self._on_page = []
        for worker, incarnation, key in self._on_page:
            self._grants.add((worker, incarnation), key)
        return self._on_page


def _decoded(data: bytes | None) -> Shared:
    try:
        return msgspec.json.decode(data, type=Shared) if data else Shared()
    except UNREADABLE:
        return Shared()
