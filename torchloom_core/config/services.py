"""The tables of the processes beside the Weaver: broker, lighthouse, rendezvous, dashboard."""

from typing import Annotated

import msgspec

from torchloom_core.config.ranges import Host, HostAndPort, Positive, UpToADay
from torchloom_core.floor.tls import SECURE, TlsFiles
from torchloom_core.wire.limits import Name

_Pattern = Annotated[str, msgspec.Meta(min_length=1)]

LEAST_JOIN_S = 60.0
"""How long credentials for joining are valid at least."""

HeaderName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")]
"""Of an HTTP header."""
ROUTE_STEP = 2000
"""The servers of a cluster connect to each other at this much above the port for clients."""

_LEAST_PEERS = 3
_Peer = Annotated[HostAndPort, msgspec.Meta(min_length=1)]


def _pair(certificate: str, key: str) -> None:
    """Refuse half of what TLS needs."""
    if bool(certificate) != bool(key):
        raise ValueError(f"need both certificate and key, was {certificate or key!r}")


class Broker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[broker]``: the URL of your own nats-server, or the address of the embedded one."""

    url: str = ""
    creds: str = ""
    worker_creds: str = ""
    accounts: str = ""
    host: Host = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    peers: tuple[_Peer, ...] = ()
    certificate: str = ""
    key: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        """Refuse half of what TLS or a cluster needs."""
        _pair(self.certificate, self.key)
        if self.url and (self.ca or self.certificate) and SECURE not in self.url:
            raise ValueError(f"url: with ca or certificate need {SECURE}host:port, was {self.url}")
        if self.ca and not (self.url or self.certificate):
            raise ValueError("need certificate and key beside ca, or url, was ca alone")
        if self.accounts and (not self.url or self.creds or self.worker_creds):
            raise ValueError("accounts: need url beside it, and neither creds nor worker_creds")
        if self.peers:
            self._check_peers()

    def _check_peers(self) -> None:
        if self.url:
            raise ValueError("need either url or peers, were both")
        if len(set(self.peers)) < _LEAST_PEERS:
            need = f"need {_LEAST_PEERS} or more hosts, as fewer survive no loss"
            raise ValueError(f"peers: {need}, was {len(set(self.peers))}")
        for peer in self.peers:
            if not 0 < int(peer.rpartition(":")[2]) <= 65_535 - ROUTE_STEP:
                raise ValueError(f"peers: need ports up to {65_535 - ROUTE_STEP}, was {peer}")
        if not any(peer.endswith(f":{self.port}") for peer in self.peers):
            raise ValueError(f"port: need this host's own in peers, was {self.port}")

    @property
    def peers_url(self) -> str:
        """Where clients connect: to any server of the cluster; empty if it is none."""
        scheme = SECURE if self.certificate else "nats://"
        return ",".join(f"{scheme}{peer}" for peer in self.peers)

    @property
    def tls(self) -> TlsFiles:
        """Its files, for error messages under ``[broker]``."""
        return TlsFiles(self.certificate, self.key, self.ca, "[broker]")


class Join(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[join]``: which workers get credentials of the embedded broker."""

    names: Annotated[tuple[_Pattern, ...], msgspec.Meta(min_length=1)] = ("*",)
    expires_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0
    per_s: Annotated[float, msgspec.Meta(ge=0.1, le=1e6)] = 1000.0
    cut_after_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 1.0

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
    certificate: str = ""
    key: str = ""
    ca: str = ""

    def __post_init__(self) -> None:
        """Refuse half of what TLS needs."""
        _pair(self.certificate, self.key)
        if self.ca and not self.certificate:
            raise ValueError("need certificate and key beside ca, was ca alone")

    @property
    def tls(self) -> TlsFiles:
        """Its files, for error messages under ``[lighthouse]``."""
        return TlsFiles(self.certificate, self.key, self.ca, "[lighthouse]")


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
        _pair(self.certificate, self.key)

    @property
    def tls(self) -> TlsFiles:
        """Its files, for error messages under ``[dashboard]``."""
        return TlsFiles(self.certificate, self.key, place="[dashboard]")


class Standby(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``[standby]``: how standby Weavers replace a leader, see docs/operate/ha.md."""

    lease_s: Annotated[float, msgspec.Meta(ge=0.5, le=60)] = 1.0
    """A leader that has not been heard of for this long is replaced."""
    record_bytes: Annotated[int, msgspec.Meta(ge=1 << 20)] = 1 << 30
    """Most bytes of trajectory that the broker keeps for standbys."""
    record_age_s: Positive = 86_400.0
    """How long the broker keeps them."""
