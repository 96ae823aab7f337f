"""The tables of the processes beside the Weaver: broker, lighthouse, rendezvous, dashboard."""

from typing import Annotated

import msgspec

from torchloom_core.config.ranges import Host, HostAndPort, Positive, UpToADay
from torchloom_core.wire.limits import Name

_Pattern = Annotated[str, msgspec.Meta(min_length=1)]

LEAST_JOIN_S = 60.0
"""How long credentials for joining are valid at least."""

HeaderName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")]
"""Of an HTTP header."""


class Broker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[broker]``: the URL of your own nats-server, or the address of the embedded one."""

    url: str = ""
    creds: str = ""
    worker_creds: str = ""
    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[join]``: which workers get credentials of the embedded broker."""

    names: Annotated[tuple[_Pattern, ...], msgspec.Meta(min_length=1)] = ("*",)
    expires_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    cut_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 10.0

    def __post_init__(self) -> None:
        """Refuse an end that comes before a trainer has read the file."""
        if 0 < self.expires_s < LEAST_JOIN_S:
            need = f"need {LEAST_JOIN_S:g} or more, or 0"
            raise ValueError(f"expires_s: {need}, was {self.expires_s:g}")


class Lighthouse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[lighthouse]``: the lighthouse that the Weaver starts if this table is present."""

    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29510
    status_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29511
    min_replicas: Annotated[int, msgspec.Meta(ge=1)] = 1
    join_timeout_s: UpToADay = 60.0
    heartbeat_timeout_s: UpToADay = 5.0
    quorum_tick_s: UpToADay = 0.1
    order: tuple[Name, ...] = ()


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[rendezvous]``: the rendezvous of trainers that are split over workers."""

    address: HostAndPort = ""


class SignOn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[dashboard.sign_on]``: a reverse proxy in front signs people on.

    ``viewers`` and ``operators`` are names, ``@group`` or ``*`` for all whom the proxy lets pass.
    """

    secret: str
    secret_header: HeaderName = "X-Torchloom-Secret"
    user_header: HeaderName = "X-Forwarded-User"
    groups_header: HeaderName = "X-Forwarded-Groups"
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a table by which nobody may see the page."""
        if not (self.viewers or self.operators):
            raise ValueError('need viewers or operators, such as viewers = ["*"]')


class Dashboard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[dashboard]``: the dashboard's page."""

    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 29512
    names: tuple[Host, ...] = ()
    certificate: str = ""
    key: str = ""
    sign_on: SignOn | None = None

    def __post_init__(self) -> None:
        """Refuse half of what TLS needs."""
        if bool(self.certificate) != bool(self.key):
            raise ValueError(f"need both certificate and key, was {self.certificate or self.key!r}")


class Standby(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[standby]``: how standby Weavers replace a leader, see docs/operate/ha.md."""

    lease_s: Annotated[float, msgspec.Meta(ge=0.5, le=60)] = 1.0
    """A leader that has not been heard of for this long is replaced."""
    record_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30
    """Most bytes of trajectory that the broker keeps for standbys."""
    record_age_s: Positive = 86_400.0
    """How long the broker keeps them."""
