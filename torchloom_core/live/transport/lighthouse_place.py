"""Which lighthouse serves the run: its entry in the bucket, and whether it answers."""

import asyncio
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
from torchloom_core.wire.limits import ShortText, Text

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


class LighthousePlace:
    """The run's entry; times by this process's clock."""

    def __init__(self, state: StateBucket, settings: Lighthouse | None) -> None:
        self._state = state
        files = settings.tls if settings is not None else NO_TLS
        self._tls = client_context(files) if files.certificate else None
        self._answered_s = time.monotonic()
        self._missed = 0

    async def elsewhere(self, folder: Path) -> str:
        """Return the URL of a lighthouse of another host or folder, empty if it is not there."""
        self._answered_s = time.monotonic()
        return _elsewhere(await self._state.get(_KEY), folder)

    async def declare(self, url: str, folder: Path) -> None:
        """Write that this one serves the run."""
        await self._state.put(_KEY, _encoded(url, folder))

    async def take(self, url: str, folder: Path, *, instead_of: str) -> str:
        """Write that this one serves the run, if the other one is the run's still.

        Returns the URL of a third one that another Weaver declared meanwhile, else an empty text.
        """
        third = ""

        async def change(value: bytes | None) -> bytes | None:
            nonlocal third
            found = _elsewhere(value, folder)
            third = found if found != instead_of else ""
            return None if third else _encoded(url, folder)

        await self._state.change(_KEY, change)
        self._answered_s = time.monotonic()
        return third

    async def is_gone(self, url: str) -> bool:
        """Look once; return whether it has not answered for some seconds and looks."""
        await asyncio.sleep(_LOOK_S)
        parts = urlsplit(url)
        asked_s = time.monotonic()
        try:
            answer = await since_ns((parts.hostname or "", parts.port or 0), self._tls)
        except ssl.SSLError:  # it trusts another CA, and lives
            answer = 0
        self._missed += 1
        if answer is not None:
            self._answered_s, self._missed = asked_s, 0
        return self._missed >= _GONE_LOOKS and time.monotonic() - self._answered_s > _GONE_S


def _encoded(url: str, folder: Path) -> bytes:
    return msgspec.json.encode(_Entry(url=url, host=socket.gethostname(), folder=str(folder)))


def _elsewhere(value: bytes | None, folder: Path) -> str:
    try:
        entry = msgspec.json.decode(value or b"", type=_Entry)
    except UNREADABLE:
        return ""
    own = entry.host == socket.gethostname() and entry.folder == str(folder)
    return "" if own else entry.url
