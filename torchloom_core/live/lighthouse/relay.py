"""Forward one fixed address beside the trainers to the lighthouse that serves now.

torchft's Managers know one address for their whole life. Of the addresses given, the one that
answers and was declared last is chosen: a Weaver declares a lighthouse on another host only after
the one before is gone. When another is chosen, the connections to the one before are cut, so that
the Managers' next calls go to the new one.
"""

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress

from torchloom_core.floor.errors import ConfigError, LighthouseError
from torchloom_core.floor.first_done import end_all
from torchloom_core.floor.plain_text import RateLimitedLog
from torchloom_core.floor.serving_since import Address, since_ns
from torchloom_core.floor.tls import NO_TLS, Renewal, TlsFiles, client_context, fault_of
from torchloom_core.floor.web_server import url_of
from torchloom_core.live.lighthouse.front import copy_both_ways, listeners

_log = logging.getLogger(__name__)

_LOOK_S = 1.5
_GO_BACK_S = 60.0
"""By then a lighthouse that was replaced is ended, or nobody replaces the one that is gone."""

_REST_S = 0.2


class Choice:
    """Which of several lighthouses serves: the one declared last, of those that answer."""

    def __init__(self) -> None:
        self.place: Address | None = None
        self._since_ns = -1
        self._answered_s = 0.0

    def is_changed_by(self, answers: Mapping[Address, int | None], now_s: float) -> bool:
        """Take one look at all at ``now_s``; return whether another one serves now.

        One that does not answer stays chosen until another one was declared later. One that was
        declared earlier is chosen only after a minute: its last quorum may have had the same
        members, which connected anew under the one that is gone, and would take that quorum's id
        for a new one.
        """
        serving = {place: since for place, since in answers.items() if since is not None}
        if self.place in serving:
            self._answered_s = now_s
        newest = max(serving, key=lambda place: serving[place], default=None)
        if newest is None or newest == self.place:
            return False
        if serving[newest] <= self._since_ns and now_s - self._answered_s < _GO_BACK_S:
            return False
        self.place, self._since_ns, self._answered_s = newest, serving[newest], now_s
        return True


class Relay:
    """The connections of one fixed address, and the lighthouse that they lead to.

    With a CA in ``files`` by TLS; LighthouseError if these cannot be used.
    """

    def __init__(self, places: Sequence[Address], files: TlsFiles = NO_TLS) -> None:
        self._places = tuple(places)
        self._files = files
        try:
            self._tls = client_context(files) if files.ca else None
        except ConfigError as error:
            raise LighthouseError(str(error)) from None
        self._renewal = Renewal(self._tls, files) if self._tls else None
        self._limited_log = RateLimitedLog(_log)
        self._choice = Choice()
        self._open: set[asyncio.Task[None]] = set()
        self._look_now = asyncio.Event()

    async def serve(self, bind: Address, ready: Callable[[str], None]) -> None:
        """Listen and forward until cancelled; LighthouseError if the address cannot be used."""
        try:
            found = listeners(*bind)
        except OSError as error:
            why = error.strerror or error
            raise LighthouseError(f"--bind: cannot listen on {bind[0]}:{bind[1]}: {why}") from None
        async with AsyncExitStack() as stack:
            for one in found:
                await stack.enter_async_context(await asyncio.start_server(self._take, sock=one))
            stack.push_async_callback(self._cut)
            ready(url_of(found[0]))
            await self._watch()

    async def _watch(self) -> None:
        while True:
            if self._renewal is not None:
                self._renewal.check()
            answers = await asyncio.gather(*map(self._since_ns, self._places))
            if self._choice.is_changed_by(
                dict(zip(self._places, answers, strict=True)), time.monotonic()
            ):
                _log.warning("the lighthouse that serves is %s:%d", *self._choice.place or ())
                await self._cut()
            self._look_now.clear()
            await asyncio.sleep(_REST_S)
            with suppress(TimeoutError):
                # Not all hosts at once.
                async with asyncio.timeout(_LOOK_S * random.uniform(0.5, 1.0)):
                    await self._look_now.wait()

    async def _cut(self) -> None:
        await end_all(*self._open)

    async def _since_ns(self, place: Address) -> int | None:
        where = "the lighthouse at {}:{}".format(*place)
        try:
            found = await since_ns(place, self._tls)
        except ssl.SSLError as error:
            self._limited_log.add(where, f"{where}: {fault_of(error, self._files.ca)}")
            return None
        if found is None and self._tls and self._choice.place is None:
            asked = "" if self._files.certificate else "; it may ask for --certificate and --key"
            self._limited_log.add(where, f"{where} gives no answer{asked}")
        return found

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._open.add(task)
        await asyncio.wait({task})
        self._open.discard(task)
        writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._choice.place is not None:
                inner = await asyncio.open_connection(*self._choice.place, ssl=self._tls)
                return await copy_both_ways((reader, writer), inner)
        except OSError:
            self._look_now.set()
