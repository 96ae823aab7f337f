"""Check torchft's settings: the lighthouse, retries, and timeouts that fit each other."""

import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from torchloom_core.cli.doctor.finding import Check, Finding, Host, is_loopback

_LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
_RETRIES = "TORCHFT_QUORUM_RETRIES"
_TIMEOUT, _QUORUM, _CONNECT = (
    f"TORCHFT_{name}_SEC" for name in ("TIMEOUT", "QUORUM_TIMEOUT", "CONNECT_TIMEOUT")
)
_DEFAULT_S = 60
_ANSWER_S = 3.0
_FEW_RETRIES = 10


def lighthouse(host: Host) -> Iterable[Finding]:
    """Connect to the lighthouse of ``TORCHFT_LIGHTHOUSE``."""
    url = host.environment.get(_LIGHTHOUSE)
    if host.config is not None:
        return
    if url is None:
        yield Finding("lighthouse", "ok", f"{_LIGHTHOUSE} is not set: torchft is not used")
        return
    try:
        place = urlsplit(url)
        name, port = place.hostname, place.port
    except ValueError:
        name = port = None
    if not name or not port:
        text = f"{_LIGHTHOUSE}: need http://HOST:PORT, was {url!r}"
        yield Finding("lighthouse", "problem", text, "set it as torchloom weaver prints it")
    elif is_loopback(name) and host.broker_is_remote:
        text = f"{_LIGHTHOUSE}={url} is this host, and the Weaver is another"
        yield Finding("lighthouse", "problem", text, "set lighthouse.host in torchloom.toml")
    else:
        try:
            socket.create_connection((name, port), _ANSWER_S).close()
        except OSError as error:
            text = f"{_LIGHTHOUSE}={url} is not reached: {error.strerror or error}"
            yield Finding("lighthouse", "problem", text, "start it, or open the port")
        else:
            yield Finding("lighthouse", "ok", f"{url} is reached")


def retries(host: Host) -> Iterable[Finding]:
    """Check that trainers outlive a restart of the lighthouse."""
    if host.config is not None or _LIGHTHOUSE not in host.environment:
        return
    text = host.environment.get(_RETRIES, "0")
    change = f"set {_RETRIES}=100"
    if not text.isdecimal():
        yield Finding("quorum retries", "problem", f"need a whole number, was {text!r}", change)
    elif int(text) < _FEW_RETRIES:
        need = f"need {_FEW_RETRIES}, was {text}: a restart of the lighthouse ends the trainers"
        yield Finding("quorum retries", "warning", need, change)
    else:
        yield Finding("quorum retries", "ok", text)


def timeouts(host: Host) -> Iterable[Finding]:
    """Check that the wait for a quorum outlasts what the others may be waiting for."""
    if host.config is not None or _LIGHTHOUSE not in host.environment:
        return
    seconds: dict[str, int] = {}
    for name in (_TIMEOUT, _QUORUM, _CONNECT):
        text = host.environment.get(name, str(_DEFAULT_S))
        if not text.isdecimal() or not int(text):
            rule = f"{name}: need whole seconds, was {text!r}: torchft ends with an error"
            yield Finding("timeouts", "problem", rule, f"set {name}={_DEFAULT_S}")
            return
        seconds[name] = int(text)
    yield _fitting(seconds)


def _fitting(seconds: Mapping[str, int]) -> Finding:
    for longer, shorter, why in (
        (_QUORUM, _TIMEOUT, "groups that wait give up while another group's collective times out"),
        (_QUORUM, _CONNECT, "a quorum gives up before its connections are made"),
    ):
        if seconds[longer] < seconds[shorter]:
            rule = f"need {longer} >= {shorter}, was {seconds[longer]} and {seconds[shorter]}"
            return Finding(
                "timeouts", "warning", f"{rule}: {why}", f"set {longer}={seconds[shorter]}"
            )
    shown = ", ".join(f"{name} {value}" for name, value in seconds.items())
    return Finding("timeouts", "ok", shown)


def lighthouse_times(host: Host) -> Iterable[Finding]:
    """Check the times of ``[lighthouse]`` against each other."""
    own = host.config.lighthouse if host.config else None
    if own is None:
        return
    if own.heartbeat_timeout_s < 10 * own.quorum_tick_s:
        rule = "need lighthouse.heartbeat_timeout_s >= 10 quorum_tick_s"
        text = f"{rule}, was {own.heartbeat_timeout_s:g} and {own.quorum_tick_s:g}"
        change = f"set heartbeat_timeout_s = {10 * own.quorum_tick_s:g}"
        yield Finding("lighthouse times", "warning", text, change)
    elif own.join_timeout_s < own.heartbeat_timeout_s:
        rule = "need lighthouse.join_timeout_s >= heartbeat_timeout_s"
        text = f"{rule}, was {own.join_timeout_s:g} and {own.heartbeat_timeout_s:g}"
        change = f"set join_timeout_s = {own.heartbeat_timeout_s:g}"
        yield Finding("lighthouse times", "warning", text, change)
    else:
        text = f"heartbeat {own.heartbeat_timeout_s:g} s, join {own.join_timeout_s:g} s"
        yield Finding("lighthouse times", "ok", text)


CHECKS: tuple[Check, ...] = (lighthouse, retries, timeouts, lighthouse_times)
