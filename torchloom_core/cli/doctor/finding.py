"""What a check looks at, and what it finds."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from torchloom_core.config.schema import Config
from torchloom_core.floor.server_urls import parse_servers
from torchloom_core.wire.messages import JoinFile

Level = Literal["ok", "warning", "problem"]

_KERNEL = Path("/proc/sys")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check: what is, and what to change unless it is ok."""

    check: str
    level: Level
    text: str
    change: str = ""


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The set-up of one host.

    Attributes
    ----------
    environment : Mapping[str, str]
        The environment variables that its processes get.
    workers : int
        How many workers the run is expected to have.
    join_path : Path
        Where ``join.json`` is, or will be.
    join : JoinFile or None
        Its content; None if there is none that can be read.
    config : Config or None
        The Weaver's config; None on a training host.
    source : Path or None
        The config's file; None if there is none.
    """

    environment: Mapping[str, str]
    workers: int
    join_path: Path
    join: JoinFile | None = None
    config: Config | None = None
    source: Path | None = None

    @property
    def broker_url(self) -> str:
        """URLs of the nats-server as its clients use them; empty if none runs yet."""
        own = self.config.broker.url if self.config else ""
        return own or (self.join.url if self.join else "")

    @property
    def broker_is_remote(self) -> bool:
        """Whether the nats-server is known to be on another address than loopback."""
        urls = parse_servers(self.broker_url).urls if self.broker_url else []
        return any(not is_loopback(urlsplit(url).hostname or "") for url in urls)


Check = Callable[[Host], Iterable[Finding]]
"""A check: yields nothing where it does not apply."""


def is_loopback(host: str) -> bool:
    """Return whether a name or an address reaches only its own host."""
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):  # IPv6, or a name that is not known here
        return host == "::1"


def kernel_numbers(path: str) -> tuple[int, ...]:
    """Return the numbers in a file below ``/proc/sys``; none if it is not there."""
    try:
        return tuple(map(int, (_KERNEL / path).read_text().split()))
    except (OSError, ValueError):
        return ()
