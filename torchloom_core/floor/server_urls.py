"""URLs of nats-servers: one, or several of a cluster; with or without user and password.

For output, :func:`shown` removes the password.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote

LOGIN = "TORCHLOOM_NATS_LOGIN"
"""The environment variable by which a Weaver passes the login to its lighthouse: all users of the
host can read a command line."""

_NEXT = re.compile(r"\s*,\s*(?=[a-z]+://)")
_SCHEME = re.compile(r"[a-z]+://")


class Servers(NamedTuple):
    """URLs and login for a client; ``user`` and ``password``, or ``token``, are None if absent."""

    urls: list[str]
    user: str | None = None
    password: str | None = None
    token: str | None = None


def parse_servers(text: str) -> Servers:
    """Return the servers in ``text``: one URL, or several separated by commas.

    A user and a password, or a token, precede an ``@``; ``%40`` and the like are decoded. They
    apply to all servers: it suffices if one URL of a list has them. Raises ValueError if two URLs
    have different ones; the message does not contain them.

    Examples
    --------
    >>> parse_servers("nats://me:p%40ss@a:4222,nats://b:4222")
    Servers(urls=['nats://a:4222', 'nats://b:4222'], user='me', password='p@ss', token=None)
    >>> parse_servers("nats://secret@a:4222").token
    'secret'
    """
    pairs = _split(text)
    urls = [url for _, url in pairs] or [text]
    logins = {login for login, _ in pairs if login}
    if len(logins) > 1:
        raise ValueError("need the same user and password in all URLs of a list, or in only one")
    if not logins:
        return Servers(urls)
    user, is_pair, password = logins.pop().partition(":")
    if is_pair:
        return Servers(urls, user=unquote(user), password=unquote(password))
    return Servers(urls, token=unquote(user))


def login_of(text: str) -> str:
    """Return the login of the first URL that has one, still encoded."""
    return next((login for login, _ in _split(text) if login), "")


def with_login(text: str, login: str) -> str:
    """Return the URLs with ``login`` in the first of them, unless one has its own.

    Examples
    --------
    >>> with_login("nats://a:4222,nats://b:4222", "me:p%40ss")
    'nats://me:p%40ss@a:4222,nats://b:4222'
    """
    if not login or login_of(text):
        return text
    scheme = match[0] if (match := _SCHEME.match(text)) else "nats://"
    return f"{scheme}{login}@{text.removeprefix(scheme)}"


def shown(text: str) -> str:
    """Return the URLs for output: without user, password and token.

    Examples
    --------
    >>> shown("nats://me:p@s,s@a:4222, nats://b:4222")
    'nats://a:4222,nats://b:4222'
    """
    return ",".join(url for _, url in _split(text))


def _split(text: str) -> list[tuple[str, str]]:
    """Return each server's login and its URL without it."""
    pairs = []
    for part in _NEXT.split(text.strip()):
        scheme = match[0] if (match := _SCHEME.match(part)) else ""
        login, _, hosts = part.removeprefix(scheme).rpartition("@")
        pairs += [(login, f"{scheme}{host.strip()}") for host in hosts.split(",") if host.strip()]
    return pairs
