"""Behind a proxy that signs people on, each acts by their own name and as their role allows."""

import msgspec
import pytest
from starlette.datastructures import Headers
from starlette.testclient import TestClient

from torchloom_core.config.services import SignOn
from torchloom_core.floor.errors import DashboardError
from torchloom_core.live.dashboard.app import PageRequests, application
from torchloom_core.live.dashboard.auth import SessionKeys
from torchloom_core.live.dashboard.proxy_sign_on import ProxySignOn

SECRET = "a secret of the proxy"
OURS = {"host": "localhost", "origin": "http://localhost", "content-type": "application/json"}


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    return SignOn(secret=str(tmp_path / "secret"), viewers=("*",), operators=("alice", "@ml"))


class Weaver:
    """Notes what the dashboard asks of it."""

    def __init__(self):
        self.asked = []

    async def ask(self, verb, body, *_):
        self.asked.append((verb, msgspec.json.decode(body)))
        return b'{"ok": true, "text": "done"}'


@pytest.fixture
def weaver():
    return Weaver()


@pytest.fixture
def browser(settings, weaver, tmp_path):
    app = application(
        None,
        PageRequests(weaver),
        SessionKeys(tmp_path / "keys"),
        "run",
        ("localhost",),
        secure=False,
        on_entry=lambda: None,
        sign_on=ProxySignOn(settings),
    )
    return TestClient(app, base_url="http://localhost")


def stop(browser, **headers):
    named = {"x-" + name.replace("_", "-"): value for name, value in headers.items()}
    return browser.post("/ask/actions.stop", json={"name": "mallory"}, headers={**OURS, **named})


def test_an_operator_acts_by_the_name_that_the_proxy_gives(browser, weaver):
    by_group = {"forwarded_user": "bo", "forwarded_groups": "x, ml"}
    for headers in ({"forwarded_user": "alice"}, by_group):
        assert stop(browser, torchloom_secret=SECRET, **headers).json()["ok"]
    names = [body["session"].partition(".")[0] for _, body in weaver.asked]
    assert names == ["alice", "bo"]


def test_a_viewer_sees_the_page_and_changes_nothing(browser, weaver):
    viewer = {"x-torchloom-secret": SECRET, "x-forwarded-user": "eve@example.com"}
    assert browser.get("/", headers=viewer).status_code == 200
    answer = stop(browser, torchloom_secret=SECRET, forwarded_user="eve@example.com").json()
    assert answer["text"] == "actions.stop: need the role operator, eve-example-com is a viewer"
    assert not weaver.asked


@pytest.mark.parametrize(
    "headers",
    [
        {"forwarded_user": "alice"},
        {"forwarded_user": "alice", "torchloom_secret": "a secret of the pr"},
        {"torchloom_secret": SECRET},
        {"torchloom_secret": SECRET, "forwarded_user": "///"},
    ],
)
def test_who_does_not_come_through_the_proxy_is_refused(browser, weaver, headers):
    assert stop(browser, **headers).status_code == 401
    assert not weaver.asked


def test_a_header_that_stands_twice_names_nobody(settings):
    raw = [(b"x-torchloom-secret", SECRET.encode())]
    raw += [(b"x-forwarded-user", name) for name in (b"eve", b"alice")]
    assert "one header" in ProxySignOn(settings).person(Headers(raw=raw))


def test_no_one_gets_the_role_of_a_group_by_a_second_header_or_by_the_groups_name(settings):
    sign_on = ProxySignOn(settings)
    user, name = settings.user_header.lower().encode(), settings.groups_header.lower().encode()
    secret = (settings.secret_header.lower().encode(), SECRET.encode())
    twice = [secret, (user, b"eve"), (name, b"ml"), (name, b"others")]
    assert sign_on.person(Headers(raw=twice)).role == "viewer"
    assert "with a name" in sign_on.person(Headers(raw=[secret, (user, b"@ml")]))
    assert (
        sign_on.person(Headers(raw=[secret, (user, b"eve"), (name, b"a, ml")])).role == "operator"
    )


def test_who_has_no_role_is_refused_by_name(settings):
    few = msgspec.structs.replace(settings, viewers=())
    headers = Headers({"x-torchloom-secret": SECRET, "x-forwarded-user": "eve"})
    assert ProxySignOn(few).person(headers) == "eve has no role in [dashboard.sign_on]"


def test_a_short_or_absent_secret_is_one_line(settings, tmp_path):
    (tmp_path / "short").write_text("short")
    for name in ("short", "absent"):
        with pytest.raises(DashboardError, match=f"need a file with a secret.*{name}"):
            ProxySignOn(msgspec.structs.replace(settings, secret=str(tmp_path / name)))
