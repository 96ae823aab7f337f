"""Addresses that a server listens on: host and port."""

import re

from torchloom_core.floor.errors import LighthouseError

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})")


def address(text: str, option: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, an IPv6 host in brackets; or raise LighthouseError.

    Examples
    --------
    >>> address("[::]:29510", "--bind"), address("localhost:0", "--bind")
    (('::', 29510), ('localhost', 0))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise LighthouseError(f"{option}: need host:port, such as [::]:29510, was {text!r}")
    return match["v6"] or match["host"], int(match["port"])
