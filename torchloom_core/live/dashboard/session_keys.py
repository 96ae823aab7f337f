"""Session keys: a token in a link that works once, and a signed cookie.

itsdangerous would sign, but neither allow for a clock that was set back nor redeem a token once.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import private_folder, write_private

COOKIE_S = 30 * 86_400
"""How long a cookie is valid, seconds."""

_SET_BACK_S = 86_400
"""How far this host's clock may be set back: an open page keeps the kill switch."""

_KEY_BYTES = 32
_SESSION_BYTES = 4
_LONGEST_COOKIE = 200


class SessionKeys:
    """Tokens, each valid once, and cookies that outlive the dashboard's process.

    The key that signs cookies is stored in ``folder``: two dashboards of one folder accept each
    other's cookies. StateError if it cannot be read or written.
    """

    def __init__(self, folder: Path, now_s: Callable[[], float] = time.time) -> None:
        self._key = _key(private_folder(folder) / "cookie.key")
        self._now_s = now_s
        self.token = secrets.token_urlsafe(_KEY_BYTES)

    def redeem(self, token: str) -> str:
        """Return a cookie for the valid token, which is then used up; empty for any other."""
        if not hmac.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return ""
        self.token = secrets.token_urlsafe(_KEY_BYTES)
        text = f"{secrets.token_hex(_SESSION_BYTES)}.{int(self._now_s())}"
        return f"{text}.{self._sign(text)}"

    def session(self, cookie: str) -> str:
        """Return the session of a cookie; empty if the cookie is expired or not ours."""
        text, _, signed = cookie[:_LONGEST_COOKIE].rpartition(".")
        if not hmac.compare_digest(self._sign(text).encode(), signed.encode(errors="replace")):
            return ""
        session, _, issued_s = text.partition(".")
        return session if -_SET_BACK_S <= self._now_s() - int(issued_s) < COOKIE_S else ""

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="replace"), hashlib.sha256).hexdigest()


def _key(path: Path) -> bytes:
    try:
        return _read(path)
    except FileNotFoundError:
        write_private(path, secrets.token_hex(_KEY_BYTES))
        return _read(path)


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {error}") from None
    if len(key) != _KEY_BYTES:
        raise StateError(f"{path}: need a key of {_KEY_BYTES} bytes, was {len(key)}")
    return key
