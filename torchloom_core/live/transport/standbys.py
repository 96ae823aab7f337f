"""Which standby Weavers wait for a run: each announces itself, and the leader listens."""

import math
import time

import msgspec
from nats.aio.msg import Msg

from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.owner import Owner
from torchloom_core.wire.codec import UNREADABLE

ANNOUNCE_EVERY_S = 0.5
_GONE_S = 3.0
_MOST = 64


class Standbys:
    """The standbys of a run that were heard of in the last seconds."""

    def __init__(self, link: Connection, subject: str) -> None:
        self._link = link
        self._subject = subject
        self._heard: dict[tuple[str, int], tuple[Owner, float]] = {}
        self._any_ever = False
        self._listens_since_s = math.inf

    @property
    def present(self) -> tuple[Owner, ...]:
        """Those that wait now."""
        due_s = time.monotonic() - _GONE_S
        self._heard = {key: one for key, one in self._heard.items() if one[1] > due_s}
        return tuple(owner for owner, _ in self._heard.values())

    def are_none(self) -> bool:
        """Return whether none was ever heard of, in a time in which each announces itself."""
        return not self._any_ever and time.monotonic() > self._listens_since_s + _GONE_S

    async def announce(self, owner: Owner) -> None:
        """Tell the leader once that this Weaver waits; without a broker it is lost."""
        if self._link.is_connected:
            await self._link.client.publish(self._subject, msgspec.json.encode(owner))

    async def listen(self) -> None:
        """Note each announcement from now on."""
        self._listens_since_s = time.monotonic()
        await self._link.client.subscribe(self._subject, cb=self._take)

    async def _take(self, msg: Msg) -> None:
        try:
            owner = msgspec.json.decode(msg.data, type=Owner)
        except UNREADABLE:
            return
        self._any_ever = True
        key = owner.host, owner.pid
        if key in self._heard or len(self._heard) < _MOST:
            self._heard[key] = owner, time.monotonic()
