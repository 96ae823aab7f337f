"""Read ``torchloom.toml``; an error names the place, the rule and the value."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchloom_core.config.faults import Fault, find_fault, place, unplain
from torchloom_core.config.notify import KINDS as CHANNEL_KINDS
from torchloom_core.config.notify import SECRET, SECRETS_OF, Channel
from torchloom_core.config.schema import Config, EffectorSwitch, PolicySwitch, Role
from torchloom_core.floor.errors import ConfigError
from torchloom_core.floor.files import open_regular
from torchloom_core.floor.suggest import nearest
from torchloom_core.wire.capabilities import installed
from torchloom_core.wire.limits import NAME
from torchloom_core.wire.placement import TRAINER

DEFAULT_PATH = Path("torchloom.toml")

_VARIABLES = {
    "NATS_URL": "url",
    "NATS_CREDS": "creds",
    "NATS_CA": "ca",
    "NATS_CERT": "certificate",
    "NATS_KEY": "key",
}
"""Variables of the `nats` command line, and the keys of ``[broker]`` that they override."""

_OF_YOUR_OWN = {"NATS_CA", "NATS_CERT", "NATS_KEY"}
"""These are of a server of your own, not of the embedded one."""

_T = TypeVar("_T", bound=msgspec.Struct)


def load(
    path: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    *,
    as_client: bool = False,
) -> Config:
    """Read the config file, or the defaults where there is none at the default path.

    ``NATS_URL``, ``NATS_CREDS``, ``NATS_CA``, ``NATS_CERT`` and ``NATS_KEY`` override keys of
    ``[broker]``, the last three only where a URL is set. ``as_client``: a URL also takes the place
    of ``peers``, the cluster that this host is part of. Raises ConfigError if the file is missing,
    or as :func:`parse` does.
    """
    source = path or DEFAULT_PATH
    if path is None and not source.exists():
        config = Config()
    else:
        config = parse(read_text(source), str(source))
    given = {name for name in _VARIABLES if name in environment}
    if not (environment.get("NATS_URL") or config.broker.url):
        given -= _OF_YOUR_OWN
    own: dict[str, Any] = {_VARIABLES[name]: environment[name] for name in given}
    if as_client and own.get("url"):
        own["peers"] = ()
    try:
        broker = type(config.broker)(**{**msgspec.structs.asdict(config.broker), **own})
    except ValueError as error:
        raise ConfigError(f"[broker] with {', '.join(sorted(given))}: {error}") from None
    return msgspec.structs.replace(config, broker=broker)


def read_text(path: Path) -> str:
    """Return a file's text, or raise ConfigError."""
    try:
        with open_regular(path) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from None


def parse(text: str, source: str = "torchloom.toml") -> Config:
    """Decode the text of a config file; ``source`` names it in errors.

    Raises ConfigError if the text is not TOML, or has a key or value that is not allowed.
    """
    table = read_toml(text, source)
    config = convert(table, Config, source, text=text)
    fault = unplain(table)
    if fault:
        raise ConfigError(f"{place(source, text, fault.path)}: {fault.rule}")
    for name, settings in config.policies.items():
        switch(settings, PolicySwitch, source, f"policies.{name}", text)
    for role, own in config.roles.items():
        if not re.search(NAME, role):
            at = place(source, text, ("roles", role))
            raise ConfigError(f"{at}: need 1 to 64 of A-Z a-z 0-9 _ -, was {role!r}")
        for name, settings in own.policies.items():
            switch(settings, PolicySwitch, source, f"roles.{role}.policies.{name}", text)
    for name, settings in config.effectors.items():
        switch(settings, EffectorSwitch, source, f"effectors.{name}", text)
    channels(config, source, text)
    for kind in config.arbiter.actions:
        _check_kind(kind, source, text, ("arbiter", "actions", kind))
    for index, pair in enumerate(config.arbiter.forbidden):
        _check_kind(pair.action, source, text, ("arbiter", "forbidden", index, "action"))
    _check_quorum(config, source, text)
    return config


def read_toml(text: str, source: str) -> dict[str, Any]:
    """Return the table in ``text``; ConfigError if it is not TOML, or nested too deeply."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_bad_toml(str(error), source, text)) from None
    except ValueError as error:  # a number of more digits than Python cares to read
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be read") from None


def convert(table: Any, cls: type[_T], source: str, prefix: str = "", text: str = "") -> _T:
    """Turn a TOML table, at the dotted key ``prefix`` of the file ``source``, into a struct.

    ConfigError names the file, the line by the file's ``text``, the key, and what is allowed there.
    """
    try:
        return msgspec.convert(table, cls)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply to be read") from None
    except msgspec.ValidationError as error:
        fault = find_fault(table, cls) or Fault((), str(error))
        path = (*filter(None, prefix.split(".")), *fault.path)
        raise ConfigError(f"{place(source, text, path)}: {fault.rule}") from None


def switch(settings: Mapping[str, Any], cls: type[_T], source: str, prefix: str, text: str) -> _T:
    """Return the keys of a plugin's table that the Weaver reads; otherwise as :func:`convert`."""
    own = {field: settings[field] for field in cls.__struct_fields__ if field in settings}
    return convert(own, cls, source, prefix, text)


def channels(config: Config, source: str = "", text: str = "") -> dict[str, Channel]:
    """Return the channels of ``[notify.<name>]``, by name; ConfigError as :func:`convert`."""
    found = {}
    for name, settings in config.notify.items():
        if not re.search(NAME, name):
            at = place(source, text, ("notify", name))
            raise ConfigError(f"{at}: need 1 to 64 of A-Z a-z 0-9 _ -, was {name!r}")
        kind = settings.get("kind")
        if kind not in CHANNEL_KINDS:
            at = place(
                source, text, ("notify", name, "kind") if "kind" in settings else ("notify", name)
            )
            raise ConfigError(f"{at}: need kind, one of {', '.join(CHANNEL_KINDS)}, was {kind!r}")
        for key in SECRETS_OF[kind]:
            if not re.search(SECRET, str(settings.get(key, ""))):  # an error must not show it
                at = place(source, text, ("notify", name, key))
                raise ConfigError(f"{at}: need env:NAME or file:PATH, where the secret is")
        found[name] = convert(settings, CHANNEL_KINDS[kind], source, f"notify.{name}", text)
    return found


def _check_quorum(config: Config, source: str, text: str) -> None:
    """Refuse a config with which the Weaver could drain a run below its quorum."""
    least = config.min_groups(TRAINER)
    if config.lighthouse and config.lighthouse.min_replicas > least:
        where = place(source, text, ("lighthouse", "min_replicas"))
        is_own = config.roles.get(TRAINER, Role()).min_groups is not None
        rule = f"need at most {'roles.trainer' if is_own else 'arbiter'}.min_groups, {least}"
        remedy = "raise min_groups, or remove [lighthouse] if the run does not use torchft"
        raise ConfigError(f"{where}: {rule}, was {config.lighthouse.min_replicas}: {remedy}")


def _check_kind(kind: str, source: str, text: str, path: tuple[str | int, ...]) -> None:
    if kind not in installed():
        where = place(source, text, path)
        raise ConfigError(f"{where}: unknown action {kind!r}{nearest(kind, installed())}")


def _bad_toml(message: str, source: str, text: str) -> str:
    """Put the line number, which tomllib names last, behind the file name."""
    rule, _, at = message.rpartition(" (at ")
    line = re.match(r"line (\d+)", at)
    return f"{source}:{line[1] if line else len(text.splitlines())}: not valid TOML: {rule}"
