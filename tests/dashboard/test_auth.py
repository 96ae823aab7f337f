"""Nobody gets in without its cookie, by another name, or from another page."""

import asyncio

import pytest
from starlette.responses import PlainTextResponse

from torchloom_core.live.dashboard.auth import LOOPBACK, SESSION, Auth, SessionKeys

HOST = "127.0.0.1:29512"
OURS = f"http://{HOST}"


class Guests:
    """What a browser, or somebody who passes for one, gets from it."""

    def __init__(self, folder):
        self.let_in = []
        self.entered = 0
        self.keys = SessionKeys(folder)
        self.auth = Auth(self._inside, self.keys, "run", LOOPBACK, on_entry=self._on_entry)

    def _on_entry(self):
        self.entered += 1

    async def _inside(self, scope, receive, send):
        self.let_in.append(scope)
        if scope["type"] == "http":
            await PlainTextResponse("inside")(scope, receive, send)

    def ask(self, path="/", *, method="GET", query="", headers=(), kind="http"):
        """Return the status, or for a socket whether it was let in, and the headers."""
        sent = []

        async def receive():
            return {"type": "websocket.connect" if kind == "websocket" else "http.request"}

        async def send(message):
            sent.append(message)

        named = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        if not any(name == b"host" for name, _ in named):
            named.append((b"host", HOST.encode()))
        scope = {
            "type": kind,
            "path": path,
            "query_string": query.encode(),
            "headers": named,
        }
        if kind == "http":
            scope["method"] = method
        before = len(self.let_in)
        asyncio.run(self.auth(scope, receive, send))
        if kind == "websocket":
            return len(self.let_in) > before, {}
        start = sent[0]
        return start["status"], {n.decode(): v.decode() for n, v in start["headers"]}

    def cookie(self):
        """Return the header of a browser that was let in by the link."""
        status, headers = self.ask(query=f"token={self.keys.token}")
        assert (status, headers["location"]) == (303, "/")
        return ("cookie", headers["set-cookie"].partition(";")[0])


@pytest.fixture
def guests(tmp_path):
    return Guests(tmp_path)


def test_the_printed_link_lets_one_browser_in(guests):
    token = guests.keys.token
    cookie = guests.cookie()
    assert guests.ask(headers=[cookie])[0] == 200
    assert guests.let_in[-1][SESSION] == guests.keys.session(cookie[1].partition("=")[2])
    assert guests.entered == 1
    assert guests.ask(query=f"token={token}")[0] == 401
    assert guests.entered == 1


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(guests):
    _, headers = guests.ask(query=f"token={guests.keys.token}")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=lax" in headers["set-cookie"]


def test_who_is_in_and_opens_an_old_link_is_in(guests):
    cookie = guests.cookie()
    status, headers = guests.ask(query="token=old", headers=[cookie])
    assert (status, headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    "query", ["", "token=", "token=wrong", "token=a&token=b", "Token=x", "&" * 1000, "token=%ff"]
)
@pytest.mark.parametrize("path", ["/", "/page/dashboard.js", "/nowhere"])
def test_who_has_no_token_gets_nothing(guests, path, query):
    assert guests.ask(path, query=query)[0] == 401
    assert not guests.let_in


def test_a_token_opens_no_other_dashboard(guests):
    for path in ("/page/dashboard.js", "/ask/knob.set", "/live"):
        assert guests.ask(path, query=f"token={guests.keys.token}")[0] == 401
    query = f"token={guests.keys.token}"
    assert not guests.ask("/", query=query, kind="websocket", headers=[("origin", OURS)])[0]
    assert not guests.let_in


def test_who_only_asks_what_is_behind_a_link_does_not_use_it_up(guests):
    query = f"token={guests.keys.token}"
    assert guests.ask(method="HEAD", query=query)[0] == 401
    assert guests.ask(query=query)[0] == 303


@pytest.mark.parametrize(
    "cookie", ["", "torchloom-run=", "torchloom-run=a.1.b", "torchloom-other=x", "=;=;", "ä" * 9]
)
def test_another_cookie_is_none(guests, cookie):
    assert guests.ask(headers=[("cookie", cookie)])[0] == 401
    assert not guests.let_in


def test_a_cookie_that_is_long_to_read_is_not_read(guests):
    """To take the quotes off this one takes Python's own library an hour."""
    cookie = f'torchloom-run="{chr(92) * 2_000_000}"'
    assert guests.ask(headers=[("cookie", cookie)])[0] == 401


def test_our_cookie_is_found_among_others(guests):
    name, ours = guests.cookie()
    assert guests.ask(headers=[(name, f'a="b;c"; {ours};d')])[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:29512",
        "127.0.0.1.evil.example",
        "localhost.",
        "",
        "127.0.0.1:29512@evil.example",
        "127.0.0.1, evil.example",
        "[::2]:29512",
        "x" * 400,
    ],
)
def test_a_host_that_is_not_ours_is_refused_before_all_else(guests, host):
    cookie = guests.cookie()
    named = [("host", host), cookie]
    assert guests.ask(headers=named)[0] == 421
    assert guests.ask(headers=named, query=f"token={guests.keys.token}")[0] == 421
    origin = ("origin", f"http://{host}")
    assert not guests.ask("/live", kind="websocket", headers=[*named, origin])[0]
    assert guests.ask("/ask/knob.set", method="POST", headers=[*named, origin])[0] == 421
    assert not guests.let_in


def test_two_hosts_are_none(guests):
    cookie = guests.cookie()
    assert guests.ask(headers=[("host", HOST), ("host", HOST), cookie])[0] == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9", "LOCALHOST:29512", "[::1]:1"])
def test_our_own_names_are_taken_by_any_port_as_a_tunnel_has_another(guests, host):
    cookie = guests.cookie()
    origin = ("origin", f"http://{host.lower()}")
    assert guests.ask(headers=[("host", host), cookie])[0] == 200
    headers = [("host", host), cookie, origin]
    assert guests.ask("/ask/knob.set", method="POST", headers=headers)[0] == 200
    assert guests.ask("/live", kind="websocket", headers=headers)[0]


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "",
        "http://localhost:29512",
        "http://127.0.0.1",
        f"{OURS}/",
        f"{OURS}@evil.example",
        f"ftp://{HOST}",
    ],
)
def test_what_acts_or_listens_has_to_come_from_our_own_page(guests, origin):
    headers = [guests.cookie(), ("origin", origin)]
    for method in ("GET", "POST", "PUT", "DELETE"):
        assert guests.ask("/ask/knob.set", method=method, headers=headers)[0] == 403
    assert not guests.ask("/live", kind="websocket", headers=headers)[0]
    assert not guests.let_in


def test_what_acts_or_listens_has_to_say_where_it_comes_from(guests):
    headers = [guests.cookie()]
    assert guests.ask("/ask/knob.set", method="POST", headers=headers)[0] == 403
    assert not guests.ask("/live", kind="websocket", headers=headers)[0]
    both = [*headers, ("origin", OURS), ("origin", "http://evil.example")]
    assert guests.ask("/ask/knob.set", method="POST", headers=both)[0] == 403
    assert not guests.let_in


def test_our_own_page_acts_and_listens(guests):
    headers = [guests.cookie(), ("origin", OURS)]
    assert guests.ask("/ask/knob.set", method="POST", headers=headers)[0] == 200
    assert guests.ask("/live", kind="websocket", headers=headers)[0]


def test_every_answer_forbids_what_the_page_does_not_need(guests):
    cookie = guests.cookie()
    for headers in ([cookie], [], [("host", "evil.example")], [cookie, ("origin", "null")]):
        update = guests.ask(headers=headers)[1]
        policy = update["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert update["x-content-type-options"] == "nosniff"
        assert update["cache-control"] == "no-store"


def test_a_dashboard_served_by_tls_gives_its_cookie_to_tls_alone(tmp_path):
    guests = Guests(tmp_path)
    guests.auth = Auth(guests._inside, guests.keys, "run", LOOPBACK, secure=True)
    _, headers = guests.ask(query=f"token={guests.keys.token}")
    assert "Secure" in headers["set-cookie"]
