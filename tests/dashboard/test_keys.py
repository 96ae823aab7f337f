"""Links that open the dashboard once, and cookies that last."""

import pytest

from torchloom_core.floor.errors import StateError
from torchloom_core.live.dashboard.auth import COOKIE_S, SessionKeys


@pytest.fixture
def now():
    return [1e9]


@pytest.fixture
def keys(tmp_path, now):
    return SessionKeys(tmp_path / "dashboard", lambda: now[0])


def test_a_token_is_good_once_and_leaves_a_cookie(keys):
    token = keys.token
    assert keys.session(keys.redeem(token))
    assert keys.redeem(token) == ""
    assert keys.token != token


@pytest.mark.parametrize("token", ["", "wrong", "ä", "\udc80", "x" * 10_000])
def test_another_token_is_none_and_the_good_one_stays_good(keys, token):
    before = keys.token
    assert keys.redeem(token) == ""
    assert keys.redeem(before)


def test_each_browser_has_a_session_of_its_own(keys):
    sessions = {keys.session(keys.redeem(keys.token)) for _ in range(20)}
    assert len(sessions) == 20


def test_a_cookie_outlives_the_rooms_process_and_is_good_in_another_of_its_folder(
    keys, tmp_path, now
):
    cookie = keys.redeem(keys.token)
    again = SessionKeys(tmp_path / "dashboard", lambda: now[0])
    assert again.session(cookie) == keys.session(cookie) != ""
    assert SessionKeys(tmp_path / "other", lambda: now[0]).session(cookie) == ""


def test_a_cookie_is_over_after_its_time(keys, now):
    cookie = keys.redeem(keys.token)
    now[0] += COOKIE_S - 1
    assert keys.session(cookie)
    now[0] += 1
    assert keys.session(cookie) == ""


def test_a_cookie_outlives_a_clock_that_is_set_back_by_a_day_at_the_most(keys, now):
    cookie = keys.redeem(keys.token)
    now[0] -= 86_400
    assert keys.session(cookie)
    now[0] -= 1
    assert keys.session(cookie) == ""


def test_a_cookie_that_was_changed_anywhere_is_none(keys):
    cookie = keys.redeem(keys.token)
    for place in range(len(cookie)):
        other = "0" if cookie[place] != "0" else "1"
        assert keys.session(cookie[:place] + other + cookie[place + 1 :]) == ""
    for forged in ("", ".", "..", "a.b.c", cookie + "0", cookie[:-1], cookie * 100, "ä" * 50):
        assert keys.session(forged) == ""


def test_the_key_is_its_owners_alone(keys, tmp_path):
    assert (tmp_path / "dashboard" / "cookie.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "dashboard").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "00", "no hex", "ff" * 33])
def test_a_key_that_is_none_is_one_line(tmp_path, text):
    (tmp_path / "cookie.key").write_text(text)
    with pytest.raises(StateError, match=r"cookie\.key: (need a key of 32|cannot be read)"):
        SessionKeys(tmp_path)
