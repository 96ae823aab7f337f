"""The protocol of channels, and the secrets that they read."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from torchloom_core.floor.errors import ConfigError
from torchloom_core.live.weaver.notify.grouping import Message


class SendError(Exception):
    """A message was refused for good: another attempt would fail as well."""


class Channel(Protocol):
    """Sends messages to people; a call may block, and runs in a thread of its own."""

    def send(self, message: Message) -> str:
        """Send a message; return what was done, without a secret.

        Raises
        ------
        SendError
            If another attempt would fail as well; any other error is tried again.
        """


def secret(where: str, key: str) -> str:
    """Return the secret at ``env:NAME`` or ``file:PATH``, or a text that is none of these.

    It is read at each use, so that one that is replaced needs no restart. Raises ConfigError, which
    names ``key``, if it is missing.
    """
    kind, _, name = where.partition(":")
    if kind == "env":
        if not (text := os.environ.get(name, "")):
            raise ConfigError(f"{key}: the environment variable {name} is not set")
        return text
    if kind == "file":
        try:
            return Path(name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"{key}: {name} cannot be read: {why}") from None
    return where


def without(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which the secrets are replaced.

    Examples
    --------
    >>> without("bad URL https://h/T0/k3y", ["https://h/T0/k3y", ""])
    'bad URL ***'
    """
    for one in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(one, "***")
    return text
