"""What a role may not do is locked on the page, with the reason in one line."""

import re

import pytest

from tests.integration.browser import CONFIG, Dashboard

pytestmark = [pytest.mark.integration, pytest.mark.long]

SIGN_ON = '[dashboard.sign_on]\nsecret = "secret"\nviewers = ["*"]\noperators = ["alice"]\n'
SECRET = "a secret of the proxy"
CHANGES = re.compile("^(Stop all|Pause|Resume|Checkpoint now|Rewind|Set|Preview|Add)")


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    run.start_light("g0")
    run.training("g0")
    return run


def sees_a_locked_page(tab, why):
    page = tab.page
    for screen in ("Run", "Knobs", "Record"):
        page.get_by_role("tab", name=screen).click()
        tab.sees(f"Read-only: {why}.")
        changing = page.get_by_role("button", name=CHANGES).all()
        tab.waits(lambda found=changing: not any(button.is_enabled() for button in found))
    assert page.get_by_label("Your name").is_hidden()
    page.keyboard.press("!")
    tab.waits(lambda: tab.message == why)


def test_a_page_with_a_viewers_credentials_says_that_it_may_only_read(run, new_tab):
    made = run.torchloom("credentials", "create", "vic", "--role", "viewer")
    assert not made.returncode, made.stderr
    dashboard = Dashboard(run, 1, "--creds", "vic.creds")
    tab = new_tab()
    tab.page.goto(dashboard.links[-1])
    sees_a_locked_page(tab, "need credentials of an admin or operator, these are of the viewer vic")
    dashboard.end()


def test_behind_a_proxy_the_role_of_each_person_counts(run, chromium, new_tab):
    if int(chromium.version.partition(".")[0]) < 151:
        pytest.skip("a Chromium before 151 sends no headers of a proxy with a WebSocket")
    (run.folder / "secret").write_text(SECRET)
    plain = run.config.read_text()
    run.config.write_text(plain + SIGN_ON)
    dashboard = Dashboard(run, 2)
    run.config.write_text(plain)
    eve, alice = (
        new_tab(extra_http_headers={"x-torchloom-secret": SECRET, "x-forwarded-user": user})
        for user in ("eve", "alice")
    )
    for tab in (eve, alice):
        tab.page.goto(dashboard.links[-1])
    sees_a_locked_page(eve, "need the role operator, eve is a viewer")
    assert alice.page.get_by_label("Your name").input_value() == "alice"
    alice.page.get_by_role("button", name="take control").click()
    alice.sees("You are in control")
    eve.sees("alice is in control")
    dashboard.end()
