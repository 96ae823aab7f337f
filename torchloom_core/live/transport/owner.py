"""Which Weaver controls a run: its entry in the bucket, and its answer to another Weaver."""

import asyncio
import time
from contextlib import suppress

import msgspec
import nats.errors
from nats.aio.msg import Msg

from torchloom_core.floor.clock import moment_text
from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.connection import Connection
from torchloom_core.live.transport.state_bucket import OWNER_KEY, StateBucket
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import Pid, Seconds, ShortText, Stamp, Text

_ANSWER_S = 2.0
_GIVE_BACK_S = 2.0


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A Weaver process, as described to other Weavers of the run.

    A copy of the state folder has the same ``folder_id``. ``since_ns`` is by the process's own
    clock; ``age_s`` since it took the run by its monotonic clock, only in its answers. ``forced``:
    it took the run from a Weaver that was alive.
    """

    host: ShortText
    pid: Pid
    folder: Text
    folder_id: ShortText
    since_ns: Stamp
    forced: bool = False
    age_s: Seconds = 0.0

    def __str__(self) -> str:
        """Return the process, its place and its start in one line."""
        since = moment_text(self.since_ns // 10**9 * 10**9)
        return f"pid {self.pid} on {self.host}, state folder {self.folder}, since {since}"


class Ownership:
    """Reads and writes which Weaver controls the run, and queries whether it is alive."""

    def __init__(self, link: Connection, subject: str, state: StateBucket) -> None:
        self._link = link
        self._subject = subject
        self._state = state
        self._own: Owner | None = None
        self._began_s = 0.0

    @property
    def own(self) -> Owner | None:
        """The own entry, once this Weaver has declared that it controls the run."""
        return self._own

    async def recorded(self) -> Owner | None:
        """Return the Weaver that took the run last and has not released it, or None."""
        return _decoded(await self._state.get(OWNER_KEY))

    async def query(self) -> Owner | None:
        """Return the answer of the running Weaver, or None if there is none in time."""

        async def call() -> Owner | None:
            try:
                client = self._link.client
                return _decoded((await client.request(self._subject, timeout=_ANSWER_S)).data)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                return None

        return await self._link.persist("query the run's Weaver", call)

    async def declare(self, owner: Owner) -> None:
        """Answer queries from now on, and write the entry."""
        self._own, self._began_s = owner, time.monotonic()
        await self._link.client.subscribe(self._subject, cb=self._answer)
        await self._state.put(OWNER_KEY, msgspec.json.encode(owner))

    async def give_back(self) -> None:
        """Clear the entry if it is still ours, so that the next Weaver need not wait."""
        with suppress(BrokerError, TimeoutError):
            async with asyncio.timeout(_GIVE_BACK_S if self._link.is_connected else 0.0):
                if self._own is not None and await self.recorded() == self._own:
                    await self._state.put(OWNER_KEY, b"")

    async def _answer(self, msg: Msg) -> None:
        if self._own is not None and msg.reply:
            age_s = time.monotonic() - self._began_s
            await msg.respond(msgspec.json.encode(msgspec.structs.replace(self._own, age_s=age_s)))


def _decoded(data: bytes | None) -> Owner | None:
    try:
        return msgspec.json.decode(data, type=Owner) if data else None
    except UNREADABLE:
        return None
