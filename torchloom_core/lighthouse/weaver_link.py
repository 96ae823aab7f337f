"""The lighthouse's connection to the run's Weaver: what it sees goes out, what is advised comes in.

A broker that is away, or a Weaver that says nothing, changes nothing: the lighthouse decides
alone. An act is done once, in the order of the numbers: the Weaver sends again what the view does
not say is done.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.msg import Msg

from torchloom_core.errors import BrokerError, MessageError
from torchloom_core.lighthouse.service import Service
from torchloom_core.plain_text import RateLimitedLog
from torchloom_core.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.steering import LighthouseView, Steer

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_EVERY_S = 60.0
"""How often a view is sent that says nothing new: the Weaver puts each one on record."""

_AT_MOST_EVERY_S = 0.02


class Helm:
    """Obeys the Weaver of the newest epoch, and says what there is to see.

    Parameters
    ----------
    run : str
        Whose Weaver may steer.
    restored : bool
        Whether this life found the state of an earlier one.
    now_s : callable
        The monotonic clock.
    """

    def __init__(
        self,
        service: Service,
        run: str,
        *,
        restored: bool,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service = service
        self._run = run
        self._restored = restored
        self._now_s = now_s
        self._life = time.time_ns() // 1_000_000
        self._number = 0
        self._refused = ""

    def obey(self, message: Steer) -> bool:
        """Do what the Weaver says, unless it is old, out of turn or another's; return if done."""
        service = self.service
        newest = service.epoch
        if message.run != self._run or message.epoch < newest:
            text = f"need one of run {self._run} and epoch {newest} at least"
            self._refused = f"{text}, was of run {message.run} and epoch {message.epoch}"
            return False
        first = message.epoch > newest or not self._number
        if not first and message.number != self._number + 1:
            return False
        service.epoch, self._number = message.epoch, message.number
        self._refused = service.electorate.steer(message.do, self._now_s())
        verb = str(message.do.__struct_config__.tag)
        _log.info("%s: %s: %s", verb, message.reason, self._refused or "done")
        service.advance()
        return True

    def view(self) -> LighthouseView:
        """Return what there is to see now."""
        electorate, now_s = self.service.electorate, self._now_s()
        return LighthouseView(
            run=self._run,
            incarnation=self._life,
            quorum_id=electorate.quorum_id,
            members=tuple(sorted(electorate.members or ())),
            failed=electorate.failed(),
            silent=electorate.silent(now_s),
            lost=electorate.lost,
            held=electorate.held,
            aside=electorate.aside,
            epoch=self.service.epoch,
            number=self._number,
            refused=self._refused,
            state="restored" if self._restored else "new",
            waiting_s=round(electorate.waiting_s(now_s), 3),
        )


class WeaverLink:
    """Carries steering and views over NATS; :meth:`run` goes on until it is cancelled."""

    def __init__(self, helm: Helm, run: str, url: str, creds: Path | None) -> None:
        self._helm = helm
        self._run = run
        self._url = url
        self._creds = creds
        self._changed = asyncio.Event()
        self._told: LighthouseView | None = None
        self._limited_log = RateLimitedLog(_log)

    def look(self) -> None:
        """Have the view sent if it is another one."""
        self._changed.set()

    async def run(self) -> None:
        """Connect, and keep saying what there is to see, whatever becomes of the broker."""
        while True:
            link = await self._connected()
            link.on_reconnect(self._say_again)
            try:
                await self._talk(link)
            except (BrokerError, nats.errors.Error) as error:
                self._limited_log.add("broker", f"nobody steers: {error or type(error).__name__}")
                await asyncio.sleep(_RETRY_S)
            finally:
                await link.close()

    async def _talk(self, link: Connection) -> None:
        await link.client.subscribe(subjects.steer(self._run), cb=self._take)
        await link.client.subscribe(subjects.roll_call(self._run), cb=self._called)
        await self._tell(link)

    async def _connected(self) -> Connection:
        while True:
            try:
                return await Connection.open(
                    self._url,
                    creds=self._creds,
                    name=f"torchloom-lighthouse-{self._run}",
                    inbox_prefix=subjects.lighthouse_inbox(self._run),
                )
            except BrokerError as error:
                self._limited_log.add("broker", f"nobody steers: {error}")
                await asyncio.sleep(_RETRY_S)

    async def _tell(self, link: Connection) -> None:
        told_s = 0.0
        while True:
            self._changed.clear()
            view, now_s = self._helm.view(), time.monotonic()
            same = msgspec.structs.replace(view, waiting_s=0.0)
            if link.is_connected and (same != self._told or now_s >= told_s + _EVERY_S):
                try:
                    await link.client.publish(subjects.lighthouse(self._run), encode(view))
                    self._told, told_s = same, now_s
                except nats.errors.Error as error:
                    self._limited_log.add("tell", f"what is seen cannot be told: {error}")
            await asyncio.sleep(_AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _called(self, _: Msg) -> None:
        """Answer a Weaver that has just begun, and calls everybody."""
        await self._say_again()

    async def _say_again(self) -> None:
        self._told = None
        self.look()

    async def _take(self, message: Msg) -> None:
        try:
            steer = decode_json(Steer, message.data, "steering")
        except MessageError as error:
            self._limited_log.add("steer", f"dropped {error}")
            return
        if self._helm.obey(steer):
            await self._helm.service.save()  # what the view says is done stays done
        self.look()
