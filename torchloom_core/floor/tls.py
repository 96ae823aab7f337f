"""TLS by PEM files: contexts of servers and clients, and one line for each way that it fails.

The broker, the lighthouse, the dashboard and their clients use it.
"""

import asyncio
import logging
import os
import ssl
import time
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.errors import ConfigError

_log = logging.getLogger(__name__)

SECURE = "tls://"
"""The scheme of a nats-server's URL that a client uses by TLS only."""

_LOOK_S = 2.0
_SOON_S = 14 * 86_400
_MISMATCHES = (62, 64)
_EXPIRED, _NOT_YET = 10, 9
"""Codes of OpenSSL, see X509_verify_cert_error_string(3)."""


class TlsFiles(NamedTuple):
    """Paths of PEM files, empty where absent; ``place`` names their table in errors.

    A server has a certificate and its key; with a ``ca`` where it asks clients for certificates. A
    client has the ``ca`` that signed the server's certificate, without one it trusts the system's;
    and a certificate and key where the server asks for them.
    """

    certificate: str = ""
    key: str = ""
    ca: str = ""
    place: str = ""


NO_TLS = TlsFiles()


def server_context(files: TlsFiles, *, asks_clients: bool = False) -> ssl.SSLContext:
    """Return what a server needs to serve with its certificate; ConfigError if it cannot.

    With ``asks_clients`` it accepts only clients with a certificate that ``ca`` signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_own(context, files)
    if asks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_ca(context, files)
    return context


def client_context(files: TlsFiles, ca_text: str = "") -> ssl.SSLContext:
    """Return what a client needs to verify a server; ConfigError if a file is none.

    ``ca_text``: the text of CA certificates, in place of the file ``ca``.
    """
    context = ssl.create_default_context() if not (files.ca or ca_text) else _empty()
    if ca_text:
        try:
            context.load_verify_locations(cadata=ca_text)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{files.place} ca: {_reason(error)}") from None
    elif files.ca:
        _load_ca(context, files)
    if files.certificate:
        _load_own(context, files)
    return context


def check_certificate(files: TlsFiles, names: tuple[str, ...]) -> None:
    """Raise ConfigError unless clients that trust ``ca`` accept the certificate for all names.

    It is tried by a handshake in memory. A certificate that expires within two weeks is logged.
    """
    server, client = server_context(files), client_context(files._replace(certificate="", key=""))
    for name in names:
        try:
            found = _handshake(server, client, name)
        except ssl.SSLError as error:
            why = fault_of(error, files.ca)
            raise ConfigError(f"{files.place} certificate: {files.certificate}: {why}") from None
        left_s = ssl.cert_time_to_seconds(str(found.get("notAfter"))) - time.time()
        if left_s < _SOON_S and name == names[0]:
            days = f"{left_s / 86_400:.0f} days"
            _log.warning("%s: expires in %s: renew it", files.certificate, days)


def fault_of(error: BaseException, ca: str = "") -> str:
    """Return in a line why a handshake failed; "" if the error is not one of TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _MISMATCHES:
            name = error.verify_message.rpartition(" for ")[2].strip("'.")
            return f"the certificate is not for {name}"
        if error.verify_code == _EXPIRED:
            return "the certificate has expired"
        if error.verify_code == _NOT_YET:
            return "the certificate is not valid yet: compare the clocks"
        signer = f"by the CA in {ca}" if ca else "by a CA that this system trusts: set its ca"
        return f"the certificate is not signed {signer}"
    if not isinstance(error, ssl.SSLError):
        return ""
    reason = str(error.reason or "")
    if "CERTIFICATE_REQUIRED" in reason:
        return "the server requires a client's certificate: set certificate and key"
    if "ALERT" in reason and ("CERT" in reason or "UNKNOWN_CA" in reason):
        return "the server refuses the client's certificate"
    return f"the TLS handshake failed: {_reason(error)}"


class Renewal:
    """Loads a context's files again when they have changed; connections go on as they are."""

    def __init__(self, context: ssl.SSLContext, files: TlsFiles) -> None:
        self._context = context
        self._files = files
        self._seen = versions(files)

    def check(self) -> None:
        """Load files that have changed; those that cannot be used are logged."""
        now = versions(self._files)
        if now == self._seen:
            return
        self._seen = now
        try:
            if self._files.certificate:
                _load_own(self._context, self._files)
            if self._files.ca and self._context.verify_mode == ssl.CERT_REQUIRED:
                _load_ca(self._context, self._files)
        except ConfigError as error:
            _log.warning("the former certificate stays in use: %s", error)
        else:
            _log.info("%s: loaded again", self._files.certificate or self._files.ca)

    async def follow(self) -> None:
        """Check every two seconds; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            self.check()


def versions(files: TlsFiles) -> tuple[tuple[int, int], ...]:
    """Return the state of the files, to be compared; of one that is missing (0, 0)."""
    found = []
    for path in filter(None, files[:3]):
        try:
            state = os.stat(path)
            found.append((state.st_mtime_ns, state.st_ino))
        except OSError:
            found.append((0, 0))
    return tuple(found)


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    for name, path, holds in (
        ("certificate", files.certificate, "CERTIFICATE-----"),
        ("key", files.key, "PRIVATE KEY-----"),
    ):
        _check_pem(f"{files.place} {name}: need a PEM file with a {name} in it", path, holds)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password="")
    except (OSError, ssl.SSLError) as error:
        need = f"{files.place}: need a certificate and its own key, without a password"
        pair = f"{files.certificate} and {files.key}"
        raise ConfigError(f"{need}, was {pair}: {_reason(error)}") from None


def _load_ca(context: ssl.SSLContext, files: TlsFiles) -> None:
    need = f"{files.place} ca: need a PEM file with the CA's certificate in it"
    _check_pem(need, files.ca, "CERTIFICATE-----")
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{need}, was {files.ca}: {_reason(error)}") from None


def _check_pem(need: str, path: str, holds: str) -> None:
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{need}, was {path}: {error.strerror}") from None
    if holds not in text:
        raise ConfigError(f"{need}, was {path}: there is none in it")


def _empty() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, object]:
    """Return the server's certificate, once the client has verified it for ``name``."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = client.wrap_bio(down, up, server_hostname=name)
    here = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (there, here):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return dict(there.getpeercert() or {})


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or getattr(error, "strerror", "") or error)
