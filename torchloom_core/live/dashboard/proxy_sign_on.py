"""Single sign-on: who a person is and may do, by the headers of a reverse proxy.

The proxy signs people on, and sends each request on with their name, their groups and a secret. A
request without the secret is refused: any local user can connect to the dashboard's port and could
send the other headers as well.
"""

import hashlib
import hmac
import re
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers

from torchloom_core.config.services import SignOn
from torchloom_core.floor.errors import DashboardError
from torchloom_core.wire.access import PersonRole

_LEAST_SECRET = 16
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_LONGEST_NAME = 32
_ID_CHARACTERS = 8
_LONGEST_HEADER = 4096
_EVERYONE = "*"
_GROUP = "@"


class SignedOn(NamedTuple):
    """A person behind the proxy; ``session`` is the same in all their browsers."""

    name: str
    session: str
    role: PersonRole


class ProxySignOn:
    """Reads the headers; DashboardError if the file with the secret cannot be used."""

    def __init__(self, settings: SignOn) -> None:
        self._settings = settings
        need = "[dashboard.sign_on] secret: need a file with a secret"
        try:
            self._secret = Path(settings.secret).read_text(encoding="utf-8").strip().encode()
        except (OSError, UnicodeDecodeError) as error:
            raise DashboardError(f"{need}, was {settings.secret}: {error}") from None
        if len(self._secret) < _LEAST_SECRET:
            raise DashboardError(f"{need} of {_LEAST_SECRET} or more characters: {settings.secret}")

    def person(self, headers: Headers) -> SignedOn | str:
        """Return the person, or in one line why the request is refused."""
        settings = self._settings
        secret = _only(headers, settings.secret_header)
        if not hmac.compare_digest(secret.encode("latin-1", "replace"), self._secret):
            return "the dashboard is reached through its proxy, which signs people on"
        user = _only(headers, settings.user_header)
        name = _NOT_IN_NAMES.sub("-", user)[:_LONGEST_NAME]
        if not name.strip("-") or user.startswith(_GROUP):
            return f"need one header {settings.user_header} with a name"
        groups = _only(headers, settings.groups_header).split(",")
        known = {user, _EVERYONE, *(f"{_GROUP}{group.strip()}" for group in groups)}
        role = self._role(known)
        if role is None:
            return f"{user[:_LONGEST_NAME]} has no role in [dashboard.sign_on]"
        session = hashlib.sha256(user.encode()).hexdigest()[:_ID_CHARACTERS]
        return SignedOn(name, session, role)

    def _role(self, known: set[str]) -> PersonRole | None:
        if known & set(self._settings.operators):
            return "operator"
        return "viewer" if known & set(self._settings.viewers) else None


def _only(headers: Headers, name: str) -> str:
    """Return the value of a header that stands once; "" otherwise: a client may have added one."""
    values = headers.getlist(name)
    return values[0][:_LONGEST_HEADER] if len(values) == 1 else ""
