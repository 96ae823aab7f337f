"""Which lighthouse serves the run: its entry in the bucket, and whether it answers."""

import asyncio
import logging
import socket
import ssl
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from torchloom_core.config.services import Lighthouse
from torchloom_core.floor.serving_since import since_ns
from torchloom_core.floor.tls import NO_TLS, client_context
from torchloom_core.live.transport.state_bucket import StateBucket
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.limits import ShortText, Stamp, Text

_log = logging.getLogger(__name__)

_KEY = "lighthouse"
_GONE_S = 3.0
"""A lighthouse on another host that has not answered for this long is replaced."""

_GONE_LOOKS = 3
"""Looks in a row without an answer: a Weaver that was frozen itself must look again."""

_LOOK_S = 0.5


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The lighthouse that a Weaver of this host and folder started last."""

    url: Text
    host: ShortText
    folder: Text
    since_ns: Stamp = 0

    def is_of(self, folder: Path) -> bool:
        """Return whether it is of this host and folder."""
        return self.host == socket.gethostname() and self.folder == str(folder)


class LighthousePlace:
    """The run's entry; times by this process's clock.

    ``since_ns``: when the lighthouse of this host was declared, later than any before it, 0 before
    that. ``was_ours``: whether the entry was this host's when it was read.
    """

    def __init__(self, state: StateBucket, settings: Lighthouse | None) -> None:
        self._state = state
        files = settings.tls if settings is not None else NO_TLS
        self._tls = client_context(files) if files.certificate else None
        self._answered_s = time.monotonic()
        self._missed = 0
        self.since_ns = 0
        self.was_ours = False

    async def elsewhere(self, folder: Path) -> str:
        """Return the URL of a lighthouse of another host or folder, empty if it is not there."""
        self._answered_s = time.monotonic()
        value = await self._state.get(_KEY)
        entry = _decoded(value)
        if value and entry is None:
            _log.warning("key %s: need a lighthouse, was %.80r; it counts as lost", _KEY, value)
        self.was_ours = entry is not None and entry.is_of(folder)
        return "" if entry is None or self.was_ours else entry.url

    async def take(self, url: str, folder: Path, *, instead_of: str = "") -> str:
        """Write that this one serves the run, if there is no other one or it is ``instead_of``.

        Returns the URL of another one that was declared meanwhile, else an empty text.
        """
        third = ""

        async def change(value: bytes | None) -> bytes | None:
            nonlocal third
            found = _decoded(value)
            third = ""
            if found is not None and found.is_of(folder):
                self.since_ns = found.since_ns or time.time_ns()
            else:
                third = found.url if found and found.url != instead_of else ""
                self.since_ns = max(time.time_ns(), found.since_ns + 1 if found else 0)
            return None if third else self._encoded(url, folder)

        await self._state.change(_KEY, change)
        self._answered_s = time.monotonic()
        return third

    async def is_gone(self, url: str) -> bool:
        """Look once; return whether it has not answered for some seconds and looks."""
        await asyncio.sleep(_LOOK_S)
        asked_s = time.monotonic()
        self._missed += 1
        if await self.answers(url):
            self._answered_s, self._missed = asked_s, 0
        return self._missed >= _GONE_LOOKS and time.monotonic() - self._answered_s > _GONE_S

    async def answers(self, url: str) -> bool:
        """Return whether the lighthouse there answers."""
        parts = urlsplit(url)
        try:
            answer = await since_ns((parts.hostname or "", parts.port or 0), self._tls)
        except ssl.SSLError:  # it trusts another CA, and lives
            return True
        return answer is not None

    def _encoded(self, url: str, folder: Path) -> bytes:
        host = socket.gethostname()
        since_ns = self.since_ns
        return msgspec.json.encode(
            _Entry(url=url, host=host, folder=str(folder), since_ns=since_ns)
        )


def _decoded(value: bytes | None) -> _Entry | None:
    try:
        return msgspec.json.decode(value or b"", type=_Entry)
    except UNREADABLE:
        return None
