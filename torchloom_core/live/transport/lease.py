"""The lease on a run: which of several Weavers leads, and since when it has not been heard of.

The lease is one key of the run's bucket. The leader writes it again four times a lease, each time
only if its own last write is still the newest. A standby takes it, by the same rule, once it has
seen no new write for a whole lease by its own clock; no two clocks are compared, and no server's
expiry is waited for. A time in which the broker did not answer the standby does not count: the
leader could not write either.

A leader is *sure* for one lease after it sent its last successful write. No standby can have seen
that write earlier, so two Weavers are never sure at once. One that is not sure stores and sends
nothing until its next write succeeds. The epoch fences what was on its way already.

A Weaver that has heard of no standby writes rarely and waits for nothing: it acts on a full disk,
where the broker can store nothing. Its lease is long enough for it to hear of one first.
"""

import asyncio
import math
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

import msgspec
import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from torchloom_core.floor.errors import SupersededError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import UNREADABLE

LEASE_KEY = "lease"
LEASE_S = 1.0

ALONE_S = 15.0
"""The lease of a Weaver that has heard of no standby; one announces itself twice a second."""

_RENEWALS = 4
_LOOKS = 8
_TIMEOUT_S = 1
_RETRY_S = 0.1
_GIVE_BACK_S = 1.0

NO_ANSWER = (nats.errors.Error, TimeoutError, OSError)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the lease's key; no ``holder``: it was given back."""

    holder: str
    lease_s: float


class LeaseStore(Protocol):
    """One key that is written only if its revision is known; raises one of NO_ANSWER."""

    async def read(self) -> tuple[bytes | None, int]:
        """Return the value, None without one, and its revision, 0 without one."""

    async def swap(self, value: bytes, revision: int) -> int | None:
        """Write the value if ``revision`` is the newest; return the new revision, or None."""


class BucketKey:
    """The lease's key in the run's bucket, over a connection of its own."""

    def __init__(self, link: Connection, run: str) -> None:
        self._link = link
        self._bucket = subjects.bucket(run)
        self._kv: KeyValue | None = None

    async def read(self) -> tuple[bytes | None, int]:
        """Return value and revision; see LeaseStore."""
        try:
            entry = await (await self._key_value()).get(LEASE_KEY)
        except nats.js.errors.KeyDeletedError as error:
            return None, error.entry.revision or 0
        except nats.js.errors.KeyNotFoundError:
            return None, 0
        return entry.value, entry.revision or 0

    async def swap(self, value: bytes, revision: int) -> int | None:
        """Write the value if the revision is the newest; see LeaseStore."""
        kv = await self._key_value()
        try:
            return int(await kv.update(LEASE_KEY, value, revision))
        except nats.js.errors.KeyWrongLastSequenceError:
            return None

    async def _key_value(self) -> KeyValue:
        if not self._link.is_connected:  # a buffered write would arrive late
            raise nats.errors.ConnectionReconnectingError
        if self._kv is None:
            context = self._link.client.jetstream(timeout=_TIMEOUT_S)
            self._kv = await context.key_value(self._bucket)
        return self._kv


class LeaseWatch:
    """Decides by this process's clock alone when the leader has stopped writing."""

    def __init__(self) -> None:
        self._revision = -1
        self._since_s = self._answered_s = -math.inf

    def is_over(self, lease_s: float, revision: int, asked_s: float, answered_s: float) -> bool:
        """Take what a look found; return whether the lease has passed since the last write."""
        cut_off = asked_s - self._answered_s > lease_s
        self._answered_s = answered_s
        if revision != self._revision or cut_off:
            self._revision, self._since_s = revision, answered_s
        return asked_s - self._since_s >= lease_s

    def forget(self) -> None:
        """Count from anew: the broker did not answer."""
        self._revision = -1


class Lease:
    """A Weaver's view of the lease; without one, until it is taken, nothing waits for it."""

    def __init__(
        self,
        store: LeaseStore,
        run: str,
        lease_s: float = LEASE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._took_over = False
        self.is_alone: Callable[[], bool] = lambda: False
        self._run = run
        self._lease_s = lease_s
        self._now_s = now_s
        self._holder = secrets.token_hex(8)
        self._revision = 0
        self._renew_at_s = 0.0
        self._sure_until_s = math.inf
        self._renewed = asyncio.Event()
        self._lost = ""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it was taken, and no other Weaver is known to have taken it since."""
        return self._keeping is not None and not self._keeping.done()

    @property
    def is_sure(self) -> bool:
        """Whether no other Weaver can have taken it by now."""
        if self._acts_alone:
            return not self._lost
        return self._now_s() < self._sure_until_s

    @property
    def _acts_alone(self) -> bool:
        """Whether no standby waits; one that was a standby itself expects others."""
        return not self._took_over and self.is_alone()

    async def sure(self) -> None:
        """Wait until this Weaver is sure; SupersededError once another one has taken the lease."""
        while not self.is_sure:
            if self._lost:
                raise SupersededError(self._lost)
            self._renewed.clear()
            await self._renewed.wait()

    async def wait(
        self, is_free: Callable[[], Awaitable[bool]], can_lead: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Take it once its holder has given it back or stopped; return whether there was one.

        ``is_free()``: whether to take it where nobody ever had it. ``can_lead()``: whether this
        Weaver could lead now, and does not leave the lease to others.
        """
        self._took_over, watch, had_holder = True, LeaseWatch(), False
        wrote_s = -math.inf
        while True:
            asked_s = self._now_s()
            try:
                value, revision = await self._store.read()
                entry = _decoded(value)
                if entry is not None and entry.holder == self._holder:
                    # Our write, whose answer was lost: others may have seen it since then.
                    self._begin(revision, wrote_s)
                    return had_holder
                had_holder = entry is not None
                if entry is None:
                    over = await is_free()
                else:
                    late = watch.is_over(entry.lease_s, revision, asked_s, self._now_s())
                    over = late or not entry.holder
                if over and await can_lead():
                    wrote_s, asked_s = asked_s, self._now_s()
                    taken = await self._store.swap(self._entry(self._lease_s), revision)
                    if taken is not None:
                        self._begin(taken, asked_s)
                        return had_holder
            except NO_ANSWER:
                watch.forget()
            await asyncio.sleep(self._lease_s / _LOOKS)

    async def seize(self) -> None:
        """Take it from any holder, which then ends."""
        while True:
            asked_s = self._now_s()
            try:
                _, revision = await self._store.read()
                taken = await self._store.swap(self._entry(self._lease_s), revision)
            except NO_ANSWER:
                taken = None
            if taken is not None:
                return self._begin(taken, asked_s)
            await asyncio.sleep(_RETRY_S)

    async def lost(self) -> None:
        """Wait for ever, or raise SupersededError once another Weaver has taken it."""
        if self._keeping is None:
            await asyncio.Event().wait()
        else:
            await asyncio.shield(self._keeping)

    async def give_back(self) -> None:
        """Stop renewing it, and clear it if it is still ours, so that a standby need not wait."""
        if self._keeping is None:
            return
        is_ours = self.is_held
        await end_all(self._keeping)
        self._sure_until_s = -math.inf
        if is_ours:
            empty = self._entry(self._lease_s, holder="")
            with suppress(*NO_ANSWER):
                async with asyncio.timeout(_GIVE_BACK_S):
                    await self._store.swap(empty, self._revision)

    def _begin(self, revision: int, asked_s: float) -> None:
        self._note(revision, asked_s, self._lease_s)
        self._keeping = asyncio.create_task(self._keep())

    def _entry(self, lease_s: float, holder: str | None = None) -> bytes:
        own = self._holder if holder is None else holder
        return msgspec.json.encode(Entry(holder=own, lease_s=lease_s))

    def _note(self, revision: int, asked_s: float, lease_s: float) -> None:
        self._revision = revision
        self._sure_until_s = asked_s + lease_s
        self._renew_at_s = asked_s + lease_s / _RENEWALS
        self._renewed.set()

    async def _keep(self) -> None:
        was_alone, wait_s = False, self._lease_s / _RENEWALS
        while True:
            await asyncio.sleep(wait_s)
            alone = self._acts_alone
            if alone:
                self._renewed.set()  # a wait to be sure ends
            wait_s = self._lease_s / _RENEWALS
            if alone and was_alone and self._now_s() < self._renew_at_s:
                continue
            asked_s, lease_s = self._now_s(), ALONE_S if alone else self._lease_s
            wait_s = _RETRY_S
            try:
                revision = await self._store.swap(self._entry(lease_s), self._revision)
                if revision is None:
                    self._revision = await self._found()
                    wait_s = 0.0
                    continue
            except NO_ANSWER:
                continue
            self._note(revision, asked_s, lease_s)
            was_alone, wait_s = alone, self._lease_s / _RENEWALS

    async def _found(self) -> int:
        """Return the newest revision if it is ours or nobody's, else raise SupersededError."""
        value, revision = await self._store.read()
        entry = _decoded(value)
        if entry is not None and entry.holder not in ("", self._holder):
            self._sure_until_s = -math.inf
            self._lost = f"another Weaver took over run {self._run}"
            self._renewed.set()
            raise SupersededError(self._lost)
        return revision


def _decoded(data: bytes | None) -> Entry | None:
    try:
        return msgspec.json.decode(data, type=Entry) if data else None
    except UNREADABLE:
        return None
