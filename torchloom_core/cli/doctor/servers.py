"""Check the NATS servers and the Weaver that a host reaches: versions, rules and clocks."""

import asyncio
import json
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import nats.errors
from nats.aio.client import RawCredentials

from torchloom_core.cli.doctor.finding import Check, Finding, Host, Level
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.floor.errors import TorchloomError
from torchloom_core.floor.nats_client import NatsClient
from torchloom_core.floor.plain_text import plain_line
from torchloom_core.floor.server_urls import parse_servers
from torchloom_core.floor.tls import SECURE, TlsFiles, client_context, fault_of
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_json
from torchloom_core.wire.messages import SCHEMA_VERSION, JoinFile, JoinReply

_ANSWER_S = 3.0
_PORT = 4222
_OLDEST = (2, 11)
_FAR_S, _TOO_FAR_S = 1.0, 5.0
"""The deadlines of commands depend on clocks that differ by at most the second."""


def nats_servers(host: Host) -> Iterable[Finding]:
    """Read the greeting of each nats-server: it is reached, new enough, and has JetStream."""
    for url in parse_servers(host.broker_url).urls if host.broker_url else ():
        place = urlsplit(url)
        at = f"{place.hostname}:{place.port or _PORT}"
        try:
            with socket.create_connection(
                (place.hostname or "", place.port or _PORT), _ANSWER_S
            ) as link:
                greeting = link.makefile("rb").readline(1 << 17)
            info = json.loads(greeting.removeprefix(b"INFO "))
            yield _judged(at, info if isinstance(info, dict) else {})
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or "no answer"
            if isinstance(error, ValueError):
                reason = "no nats-server answers there"
            change = "open the port in the firewall, or correct the URL"
            yield Finding("broker", "problem", f"{at} is not reached: {reason}", change)


def _judged(at: str, info: dict[str, object]) -> Finding:
    version = str(info.get("version", "none"))
    numbers = version.split(".")[:2]
    if not all(part.isdecimal() for part in numbers) or tuple(map(int, numbers)) < _OLDEST:
        return Finding("broker", "problem", f"{at}: need nats-server >= 2.11, was {version}")
    if not info.get("jetstream"):
        text = f"{at}: need JetStream, was off"
        return Finding("broker", "problem", text, "add jetstream { store_dir: ... } to its config")
    payload = info.get("max_payload")
    if not isinstance(payload, int) or payload < MAX_MESSAGE_BYTES:
        text = f"{at}: need max_payload >= {MAX_MESSAGE_BYTES}, was {payload}"
        return Finding("broker", "problem", text, f"set max_payload: {MAX_MESSAGE_BYTES}")
    return Finding("broker", "ok", f"nats-server {version} at {at}")


def weaver(host: Host) -> Iterable[Finding]:
    """Ask the running Weaver for its version and its time, with the credentials for joining."""
    join = _way_to_weaver(host)
    if join is None:
        return
    try:
        reply, before_ns, after_ns = asyncio.run(_ask(join))
    except nats.errors.NoRespondersError:
        level: Level = "problem" if host.config is None else "ok"
        text = f"no Weaver of run {join.run} answers"
        yield Finding("weaver", level, text, "start it: torchloom weaver" * (level != "ok"))
        return
    except (nats.errors.Error, OSError, ValueError, TorchloomError, TimeoutError) as error:
        reason = fault_of(error) or plain_line(str(error)) or type(error).__name__
        used, change = "broker.creds", "correct broker.url or broker.creds"
        if host.join:
            used, change = "join.json", "copy it again: the Weaver may have written another"
        yield Finding("weaver", "problem", f"the server refuses {used}: {reason}", change)
        return
    yield _version(reply)
    yield _clock(reply, before_ns, after_ns)


def _way_to_weaver(host: Host) -> JoinFile | None:
    """Return ``join.json``, or on the host of a standby, which has none, the same by its config."""
    if host.join or host.config is None or not host.config.broker.url:
        return host.join
    broker = host.config.broker
    return JoinFile(
        url=broker.url,
        run=host.config.run.name,
        creds=_text(broker.creds),
        enrol=False,
        ca=_text(broker.ca),
        certificate=broker.certificate,
        key=broker.key,
    )


def _text(name: str) -> str:
    """Return a file's text; empty if it cannot be read, which another check reports."""
    try:
        return Path(name).read_text(encoding="utf-8") if name else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _version(reply: JoinReply) -> Finding:
    if reply.v != SCHEMA_VERSION:
        text = f"need the Weaver's wire version, {reply.v}, was {SCHEMA_VERSION}"
        change = "install the Weaver's version of torchloom here (docs/operate/upgrade.md)"
        return Finding("wire version", "problem", text, change)
    return Finding("wire version", "ok", f"{SCHEMA_VERSION}, as the Weaver's")


def _clock(reply: JoinReply, before_ns: int, after_ns: int) -> Finding:
    if not reply.ts_ns:
        return Finding("clock", "warning", "this Weaver does not send its time", "upgrade it")
    ahead_s = ((before_ns + after_ns) / 2 - reply.ts_ns) / SECOND_NS
    error_s = (after_ns - before_ns) / 2 / SECOND_NS
    side = "ahead of" if ahead_s > 0 else "behind"
    text = f"{abs(ahead_s):.3f} s {side} the Weaver's, within {error_s:.3f} s"
    off_s = abs(ahead_s) - error_s
    if off_s <= _FAR_S:
        return Finding("clock", "ok", text)
    level: Level = "problem" if off_s > _TOO_FAR_S else "warning"
    need = f"need at most {_FAR_S:g} s, was {text}"
    return Finding("clock", level, need, "run NTP on both hosts (chrony, ntpd, systemd-timesyncd)")


async def _ask(join: JoinFile) -> tuple[JoinReply, int, int]:
    """Send an empty join request, which asks for version and time alone.

    Return the answer, and the times before and after, ns.
    """
    client, secure = NatsClient(), {}
    if SECURE in join.url:
        own = TlsFiles(join.certificate, join.key, place="join.json")
        secure["tls"] = client_context(own, join.ca)
    faults: list[Exception] = []

    async def note(error: Exception) -> None:
        faults.append(error)

    try:
        await client.connect(
            join.url,
            **secure,
            user_credentials=RawCredentials(join.creds) if join.creds else None,
            inbox_prefix=subjects.join_inbox(join.run),
            name="torchloom doctor",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=_ANSWER_S,
            error_cb=note,
        )
        await client.request(subjects.join(join.run), b"", timeout=_ANSWER_S)  # the way is open
        before_ns = time.time_ns()
        answer = await client.request(subjects.join(join.run), b"", timeout=_ANSWER_S)
        return decode_json(JoinReply, answer.data, "join reply"), before_ns, time.time_ns()
    except nats.errors.NoServersError as error:
        # nats-py says why to its callback only.
        raise next(filter(fault_of, faults), faults[-1] if faults else error) from None
    finally:
        await client.close()


CHECKS: tuple[Check, ...] = (nats_servers, weaver)
