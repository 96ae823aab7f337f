"""The lighthouse's connection to the run's Weaver: publish views, receive steering.

Without a broker or a Weaver the lighthouse decides alone. An act is carried out once, in the order
of the numbers: the Weaver repeats acts that the view does not show as done.
"""

import asyncio
import logging
import time
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.msg import Msg

from torchloom_core.floor.errors import BrokerError, MessageError
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.floor.tls import NO_TLS, TlsFiles
from torchloom_core.live.lighthouse.service import Service
from torchloom_core.live.transport.connection import Connection
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import decode_json, encode
from torchloom_core.wire.steering import LighthouseView, Steer

_log = logging.getLogger(__name__)

_RETRY_S = 1.0
_EVERY_S = 60.0
"""How often an unchanged view is sent: the Weaver records each one."""

_AT_MOST_EVERY_S = 0.02


class WeaverLink:
    """Carries steering and views over NATS; ``restored``: with the state of a previous process."""

    def __init__(
        self,
        service: Service,
        run: str,
        url: str,
        creds: Path | None,
        tls: TlsFiles = NO_TLS,
        *,
        restored: bool,
    ) -> None:
        self._service = service
        self._run = run
        self._url = url
        self._creds = creds
        self._tls = tls
        self._restored = restored
        self._incarnation = time.time_ns() // 1_000_000
        self._number = 0
        self._refused = ""
        self._changed = asyncio.Event()
        self._published: LighthouseView | None = None
        self._limited_log = RateLimitedLog(_log)

    def _apply(self, message: Steer) -> bool:
        """Carry out an act unless it is old, out of order or of another run; return if done."""
        service = self._service
        newest = service.epoch
        if message.run != self._run or message.epoch < newest:
            text = f"need run {self._run} and epoch {newest} or higher"
            self._refused = f"{text}, was run {message.run} and epoch {message.epoch}"
            return False
        first = message.epoch > newest or not self._number
        if not first and message.number != self._number + 1:
            return False
        service.epoch, self._number = message.epoch, message.number
        self._refused = service.electorate.steer(message.do, service.now_s())
        verb = str(message.do.__struct_config__.tag)
        _log.info("%s: %s: %s", verb, message.reason, self._refused or "done")
        service.advance()
        return True

    def _view(self) -> LighthouseView:
        electorate, now_s = self._service.electorate, self._service.now_s()
        return LighthouseView(
            run=self._run,
            incarnation=self._incarnation,
            quorum_id=electorate.quorum_id,
            members=tuple(sorted(electorate.members or ())),
            failed=electorate.failed(),
            silent=electorate.silent(now_s),
            lost=electorate.lost,
            held=electorate.held,
            aside=electorate.aside,
            epoch=self._service.epoch,
            number=self._number,
            refused=self._refused,
            state="restored" if self._restored else "new",
            waiting_s=round(electorate.waiting_s(now_s), 3),
        )

    def changed(self) -> None:
        """Send the view if it has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Connect, reconnect when necessary, and publish views."""
        while True:
            link = await self._connected()
            link.on_reconnect(self._publish_again)
            try:
                await self._talk(link)
            except (BrokerError, nats.errors.Error) as error:
                reason = str(error) or type(error).__name__
                self._limited_log.add("broker", f"not steered by the Weaver: {reason}")
                await asyncio.sleep(_RETRY_S)
            finally:
                await link.close()

    async def _talk(self, link: Connection) -> None:
        await link.client.subscribe(subjects.steer(self._run), cb=self._take)
        await link.client.subscribe(subjects.roll_call(self._run), cb=self._publish_again)
        await self._publish(link)

    async def _connected(self) -> Connection:
        while True:
            try:
                return await Connection.open(
                    self._url,
                    creds=self._creds,
                    tls=self._tls,
                    name=f"torchloom-lighthouse-{self._run}",
                    inbox_prefix=subjects.lighthouse_inbox(self._run),
                )
            except BrokerError as error:
                self._limited_log.add("broker", f"not steered by the Weaver: {error}")
                await asyncio.sleep(_RETRY_S)

    async def _publish(self, link: Connection) -> None:
        published_s = 0.0
        while True:
            self._changed.clear()
            view, now_s = self._view(), time.monotonic()
            same = msgspec.structs.replace(view, waiting_s=0.0)
            if link.is_connected and (same != self._published or now_s >= published_s + _EVERY_S):
                try:
                    await link.client.publish(subjects.lighthouse(self._run), encode(view))
                    self._published, published_s = same, now_s
                except nats.errors.Error as error:
                    self._limited_log.add("view", f"the view cannot be published: {error}")
            await asyncio.sleep(_AT_MOST_EVERY_S)
            try:
                async with asyncio.timeout(_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _publish_again(self, _: Msg | None = None) -> None:
        self._published = None
        self.changed()

    async def _take(self, message: Msg) -> None:
        try:
            steer = decode_json(Steer, message.data, "steering")
        except MessageError as error:
            self._limited_log.add("steer", f"dropped {error}")
            return
        if self._apply(steer):
            await self._service.save()  # before the view shows it as done
        self.changed()
