"""The embedded server's config file: its addresses, TLS, and the cluster it belongs to."""

import hashlib
import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

from torchloom_core.config.services import ROUTE_STEP, Broker
from torchloom_core.floor.tls import SECURE, TlsFiles, check_certificate
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES

_ROUTE_USER = "torchloom"
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""The address at which this host reaches a server that listens on all addresses."""


def nats_url(host: str, port: int, *, secure: bool = False) -> str:
    """Return the URL for clients; an IPv6 address is put in brackets."""
    return f"{SECURE if secure else 'nats://'}{_bracketed(host)}:{port}"


class ServerConfig:
    """What the config of one state folder's server is made of."""

    def __init__(self, folder: Path, run: str, settings: Broker) -> None:
        self._folder = folder
        self._run = run
        self._settings = settings
        self.tls = TlsFiles(
            _absolute(settings.certificate),
            _absolute(settings.key),
            _absolute(settings.ca),
            settings.tls.place,
        )
        self.store = folder / "jetstream"
        self.log = folder / "nats.log"

    @property
    def host(self) -> str:
        """The address at which it listens."""
        return self._settings.host

    @property
    def is_secure(self) -> bool:
        """Whether clients connect by TLS only."""
        return bool(self._settings.certificate)

    @property
    def servers(self) -> int:
        """How many servers the cluster has; 0: it is none."""
        return len(self._settings.peers)

    def own_url(self, port: int) -> str:
        """Return where clients on this host connect."""
        host = _LOOPBACK_OF.get(self.host, self.host)
        return nats_url(host, port, secure=self.is_secure)

    def shared_url(self, port: int) -> str:
        """Return where clients of other hosts connect: to any server of the cluster."""
        return self._settings.peers_url or nats_url(self._name, port, secure=self.is_secure)

    def check_certificate(self, port: int) -> None:
        """Raise ConfigError unless clients and, in a cluster, servers can verify it."""
        if self.is_secure:
            own = urlsplit(self.own_url(port)).hostname or ""
            check_certificate(self.tls, tuple(dict.fromkeys((own, self._name))))

    def text(self, port: int, credentials: Credentials) -> str:
        """Return the config file; the same on all hosts but for names and paths."""
        # A killed server loses nothing; a power cut loses at most sync_interval.
        return (
            f"server_name: {json.dumps(self._server_name(port))}\n"
            f"host: {json.dumps(self.host)}\n"
            f"port: {port}\n"
            'http: "127.0.0.1:-1"\n'
            f"ports_file_dir: {json.dumps(str(self._folder))}\n"
            f"max_payload: {MAX_MESSAGE_BYTES}\n"
            # With the default of 2 s, a herd that connects at once is cut off and comes again.
            "authorization { timeout: 20 }\n"
            f"log_file: {json.dumps(str(self.log))}\n"
            "logfile_size_limit: 16MB\n"
            "logfile_max_num: 2\n"
            "jetstream {\n"
            f"  store_dir: {json.dumps(str(self.store))}\n"
            '  sync_interval: "1s"\n'
            "}\n"
            f"{self._tls() if self.is_secure else ''}"
            f"{self._cluster(port, credentials) if self.servers else ''}"
            f"{credentials.server_config()}"
        )

    @property
    def _name(self) -> str:
        """Address of this host for others."""
        return socket.gethostname() if self.host in _LOOPBACK_OF else self.host

    def _server_name(self, port: int) -> str:
        # The servers of a cluster tell each other apart by it, also after a restart.
        own = f"-{self._name}-{port}" if self.servers else ""
        return f"torchloom-{self._run}{own}"

    def _tls(self, indent: str = "", *, asks: bool = False) -> str:
        lines = {"cert_file": self.tls.certificate, "key_file": self.tls.key}
        if asks and self.tls.ca:
            lines["ca_file"] = self.tls.ca
        body = "".join(f"{indent}  {key}: {json.dumps(value)}\n" for key, value in lines.items())
        return f"{indent}tls {{\n{body}{indent}  timeout: 10\n{indent}}}\n"

    def _cluster(self, port: int, credentials: Credentials) -> str:
        secret = hashlib.blake2b(credentials.cluster_secret.encode(), digest_size=24).hexdigest()
        routes = "".join(
            f'    "nats-route://{_ROUTE_USER}:{secret}@{_route(peer)}"\n'
            for peer in self._settings.peers
        )
        own = f"{_bracketed(self.host)}:{port + ROUTE_STEP}"
        return (
            f"client_advertise: {json.dumps(f'{_bracketed(self._name)}:{port}')}\n"
            "cluster {\n"
            f"  name: {json.dumps(f'torchloom-{self._run}')}\n"
            f"  listen: {json.dumps(own)}\n"
            f'  authorization {{ user: {_ROUTE_USER}, password: "{secret}", timeout: 10 }}\n'
            f"{self._tls('  ', asks=True) if self.is_secure else ''}"
            f"  routes: [\n{routes}  ]\n"
            "}\n"
        )


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _route(peer: str) -> str:
    host, _, port = peer.rpartition(":")
    return f"{host}:{int(port) + ROUTE_STEP}"
