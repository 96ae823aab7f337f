"""Check the credentials: they are there, private to their owner, valid and not expired."""

import socket
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from torchloom_core.cli.doctor.finding import Check, Finding, Host, Level
from torchloom_core.floor.errors import ConfigError, StateError
from torchloom_core.floor.server_urls import login_of
from torchloom_core.floor.tls import check_certificate

_SOON_S = 86_400


def join_file(host: Host) -> Iterable[Finding]:
    """Read ``join.json``: a training host needs it, and only its owner may."""
    path = host.join_path
    if host.join is None:
        if path.exists():
            text, change = f"{path} cannot be read, or is damaged", "copy it again"
            yield Finding("join.json", "problem", text, change)
        elif host.config is None:
            change = "copy it from the Weaver's state folder: scp -p"
            yield Finding("join.json", "problem", f"{path} does not exist", change)
        else:
            yield Finding("join.json", "ok", f"{path}: the Weaver will write it")
        return
    yield _private("join.json", path)
    yield from _valid("join.json", host.join.creds)


def keys(host: Host) -> Iterable[Finding]:
    """Read the keys of the built-in server, which the Weaver makes at its first start."""
    if host.config is None or host.config.broker.url:
        return
    from torchloom_core.live.transport.security.credentials import Credentials

    state = Path(host.config.weaver.state_dir)
    folder = state / "broker" / "keys"
    if not (folder / "keys.json").exists():
        if not host.config.broker.peers:  # those of a cluster are copied
            yield Finding("keys", "ok", f"{folder}: the Weaver will make them")
        return
    try:
        Credentials.find(state, host.config.run.name)
    except StateError as error:
        yield Finding("keys", "problem", str(error), "restore them from a backup")
        return
    yield from (_private("keys", path) for path in sorted(folder.iterdir()))


def certificates(host: Host) -> Iterable[Finding]:
    """Try the certificates of broker and lighthouse as their clients do."""
    config = host.config
    if config is None:
        return
    served = [("broker", "" if config.broker.url else config.broker.host, config.broker.tls)]
    if config.lighthouse is not None:
        served.append(("lighthouse", config.lighthouse.host, config.lighthouse.tls))
    for table, at, files in served:
        if not files.certificate or not at:
            continue
        name = socket.gethostname() if at in ("0.0.0.0", "::") else at
        try:
            check_certificate(files, (name,))
        except ConfigError as error:
            yield Finding("certificate", "problem", str(error), "see docs/operate/tls.md")
        else:
            yield Finding("certificate", "ok", f"{table}: {files.certificate} is valid for {name}")
            yield _private("certificate", Path(files.key))


def own_server(host: Host) -> Iterable[Finding]:
    """Read the credentials files that the config names for a server of one's own."""
    if host.config is None or not host.config.broker.url:
        return
    broker = host.config.broker
    for key, name in (("broker.creds", broker.creds), ("broker.worker_creds", broker.worker_creds)):
        if not name:
            continue
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            yield Finding(key, "problem", f"{path}: cannot be read: {reason}", f"correct {key}")
            continue
        yield _private(key, path)
        yield from _valid(key, text)
    if not broker.worker_creds:
        text = "not set: each trainer gets the Weaver's own rights"
        yield Finding("broker.worker_creds", "warning", text, "set it (docs/security.md)")
    if login_of(broker.url) and host.source and "NATS_URL" not in host.environment:
        yield _private("password in the config", host.source)


def _private(check: str, path: Path) -> Finding:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"{path}: need mode 0600, was {mode:04o}: others can read it"
        return Finding(check, "problem", text, f"chmod 600 {path}")
    return Finding(check, "ok", f"{path} is its owner's alone")


def _valid(check: str, creds: str) -> Iterable[Finding]:
    """Yield what is wrong with the text of a credentials file, if anything."""
    if not creds:
        return
    from torchloom_core.live.transport.security.nats_jwt import expires_s

    try:
        until_s = expires_s(creds)
    except ValueError as error:
        yield Finding(check, "problem", f"need a NATS credentials file: {error}", "write it again")
        return
    if until_s and until_s < time.time() + _SOON_S:
        is_over = until_s < time.time()
        text = "expired" if is_over else f"expire in {(until_s - time.time()) / 3600:.1f} h"
        level: Level = "problem" if is_over else "warning"
        yield Finding(check, level, f"the credentials {text}", "get fresh ones")


CHECKS: tuple[Check, ...] = (join_file, keys, own_server, certificates)
