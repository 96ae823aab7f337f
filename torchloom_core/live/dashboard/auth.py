"""Authentication of the dashboard: token, cookie, and checks of ``Host`` and ``Origin``.

A page on another site can make a visitor's browser send requests here, and a DNS name of another
party can point to this host. So ``Host`` has to be a known name, every request that acts has to
come from our own page, and nothing is served without the cookie that the printed link sets.

Starlette's middleware does not cover this: ``TrustedHostMiddleware`` ignores the port's form and
does not check ``Origin`` on sockets, and ``SessionMiddleware`` has no token that works once.
itsdangerous would sign, but not allow for a clock that was set back.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom_core.floor.errors import StateError
from torchloom_core.floor.files import private_folder, write_private
from torchloom_core.live.dashboard.proxy_sign_on import ProxySignOn

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
SESSION = "torchloom.session"
"""Key of a scope under which the browser's session stands."""

PERSON = "torchloom.person"
"""Key of a scope under which the person stands whom a proxy has signed on."""

_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(:\d{1,5})?")
_READS = frozenset({"GET", "HEAD"})
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_CLOSED = "Open the link that `torchloom dashboard` has printed; each link works once.\n"

COOKIE_S = 30 * 86_400
"""How long a cookie is valid, seconds."""

_SET_BACK_S = 86_400
"""How far this host's clock may be set back: an open page keeps the kill switch."""

_KEY_BYTES = 32
_SESSION_BYTES = 4
_LONGEST_COOKIE = 200


class SessionKeys:
    """Tokens, each valid once, and cookies, which all dashboards of one ``folder`` accept."""

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
        if not path.exists():
            write_private(path, secrets.token_hex(_KEY_BYTES))
        key = bytes.fromhex(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {error}") from None
    if len(key) != _KEY_BYTES:
        raise StateError(f"{path}: need a key of {_KEY_BYTES} bytes, was {len(key)}")
    return key


class Auth:
    """Middleware in front of everything that the dashboard serves, pages and sockets.

    ``hosts`` are the names by which browsers may reach it; ``on_entry`` is called after a link was
    used. The run is in the cookie's name: a browser may have the cookies of several runs. With
    ``sign_on`` a proxy says who sends a request, and there are no links and no cookies.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: SessionKeys,
        run: str,
        hosts: Iterable[str],
        *,
        secure: bool = False,
        on_entry: Callable[[], None] = lambda: None,
        sign_on: ProxySignOn | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._cookie = f"torchloom-{run}"
        self._hosts = frozenset(host.lower() for host in hosts)
        self._secure = secure
        self._on_entry = on_entry
        self._sign_on = sign_on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            if refusal is None:
                await self._app(scope, receive, send)
            else:
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if refusal is not None:
                    headers["connection"] = "close"  # no connection stays open without a cookie
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request; None if it is allowed."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        named = _HOST.fullmatch(host)
        if named is None or named["name"] not in self._hosts:
            return PlainTextResponse("unknown Host: add the name to [dashboard] names\n", 421)
        origins = headers.getlist("origin")
        reads = scope["type"] == "http" and scope["method"] in _READS
        if (origins or not reads) and origins not in ([f"http://{host}"], [f"https://{host}"]):
            return PlainTextResponse("Origin has to be the dashboard's own page\n", 403)
        if self._sign_on is not None:
            person = self._sign_on.person(headers)
            if isinstance(person, str):
                return PlainTextResponse(f"{person}\n", 401)
            scope[SESSION], scope[PERSON] = person.session, person
            return None
        session = self._keys.session(_cookie_of(headers, self._cookie))
        if session:
            scope[SESSION] = session
        opens = reads and scope["method"] == "GET" and scope["path"] == "/"
        token = _token_of(scope) if opens else ""
        if token:
            return self._enter(token, known=bool(session))
        return None if session else PlainTextResponse(_CLOSED, 401)

    def _enter(self, token: str, *, known: bool) -> Response:
        """Redeem a token, and redirect to an address without it."""
        cookie = self._keys.redeem(token)
        if not cookie:
            return RedirectResponse("/", 303) if known else PlainTextResponse(_CLOSED, 401)
        self._on_entry()
        response = RedirectResponse("/", 303)
        response.set_cookie(
            self._cookie,
            cookie,
            max_age=COOKIE_S,
            httponly=True,
            samesite="lax",
            secure=self._secure,
        )
        return response


def _token_of(scope: Scope) -> str:
    try:
        text: str = scope["query_string"].decode("latin-1")
        query = parse_qs(text, max_num_fields=16)
    except ValueError:  # more fields than a printed link has
        return ""
    return query.get("token", [""])[0]


def _cookie_of(headers: Headers, name: str) -> str:
    # Our cookie needs no quotes, and the standard parser is slow on a line of quotes.
    for line in headers.getlist("cookie"):
        for pair in line.split(";"):
            own, _, value = pair.strip().partition("=")
            if own == name:
                return value
    return ""
