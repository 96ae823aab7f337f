"""Check what a Weaver checks as it starts: its plugins with their options, and shared keys."""

from collections.abc import Iterable
from pathlib import Path

from torchloom_core.cli.doctor.finding import Check, Finding, Host
from torchloom_core.config.loading import DEFAULT_PATH
from torchloom_core.floor.errors import BrokerError, TorchloomError


def plugins(host: Host) -> Iterable[Finding]:
    """Build the plugins that the config names."""
    if host.config is None:
        return
    from torchloom_core.cli.weaver_command import activated

    try:
        found = activated(host.config, host.source or DEFAULT_PATH)
    except TorchloomError as error:
        yield Finding("plugins", "problem", str(error), "correct the config")
        return
    for text in (*(failure.detail for failure in found.failed), *found.warnings):
        yield Finding("plugins", "warning", text)
    policies, predictors = len(found.policies), len(found.predictors)
    yield Finding("plugins", "ok", f"{policies} policies, {predictors} predictors")


def shared_keys(host: Host) -> Iterable[Finding]:
    """Look for the keys that the hosts of a cluster share."""
    if host.config is None or not host.config.broker.peers:
        return
    from torchloom_core.live.transport.security.credentials import check_shared_keys

    try:
        check_shared_keys(Path(host.config.weaver.state_dir))
    except BrokerError as error:
        yield Finding("keys", "problem", str(error))


CHECKS: tuple[Check, ...] = (plugins, shared_keys)
