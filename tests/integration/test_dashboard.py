"""The dashboard of a real run: what its pages show, and which requests they may send."""

import json
import signal
import subprocess

import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.browser import CONFIG, Browser, Dashboard
from tests.waiting import until
from torchloom_core.live.dashboard.app import MOST_BYTES, PAGE
from torchloom_core.wire.access import ACTS

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    for group in ("g0", "g1"):
        run.start_light(group, "--step-s", "0.05")
    run.training("g0", "g1")
    return run


@pytest.fixture
def dashboard(run):
    dashboard = Dashboard(run)
    yield dashboard
    assert dashboard.end() == 0, dashboard.err.read_text()
    assert "Traceback" not in dashboard.err.read_text()


@pytest.fixture
def browser(dashboard):
    browser = Browser(dashboard.links[-1])
    assert browser.let_in
    yield browser
    browser.ask("actions.resume")
    browser.ask("control.release")
    browser.close()


def drive(browser):
    assert browser.ask("control.take", lease_s=600)["ok"]


def test_the_page_and_all_that_it_needs_come_from_the_dashboard(browser):
    status, _, page = browser.request("GET", "/")
    assert status == 200
    assert b"//" not in page
    for path in sorted(PAGE.rglob("*.*")):
        status, _, data = browser.request("GET", f"/page/{path.relative_to(PAGE)}")
        assert (status, data) == (200, path.read_bytes())
    for path in ("/page/../dashboard/keys.py", "/page/%2e%2e/app.py", "/page/", "/etc/passwd"):
        assert browser.request("GET", path)[0] == 404


def test_the_workers_progress_is_shown(browser):
    browser.listen(metric="loss", series=["loss"], worker="g0-0")
    browser.until(lambda g: {g.state("g0-0"), g.state("g1-0")} == {"training"})
    browser.until(lambda g: len(g.values) == 2 and g.values.all())
    browser.until(lambda g: len(g.known["series"].get("loss", ())) > 0)
    worker = browser.until(lambda g: g.known.get("worker"))
    assert (worker["worker"], worker["group"], worker["node"]) == ("g0-0", "g0", "node-g0")
    step = worker["step"]
    browser.until(lambda g: g.known["worker"]["step"] > step)
    browser.until(lambda g: g.known["run"]["time_account"].get("useful", 0) > 0)
    knobs = browser.until(lambda g: g.known.get("knobs"))
    assert {knob["name"] for knob in knobs} == {"x", "fenced_change", "log_level"}


def test_a_knob_is_set_and_its_progress_shown_rank_by_rank(browser):
    browser.listen()
    drive(browser)
    answer = browser.ask("knob.set", knob="x", value=2.0)
    assert answer["ok"], answer

    def applied(g):
        stories = [s for s in g.known["stories"].values() if s["outcome"].startswith("done")]
        return [s for s in stories if "x = 2" in s["summary"]]

    (story,) = browser.until(applied)
    assert story["by"] == "person"
    assert story["reason"] == "requested by ann (operator)"
    assert story["commands"] == {"applied": 2}
    assert sum(story["steps"].values()) == 2
    assert {"proposed", "verdict", "issued", "applied", "outcome"} <= set(story["moments"])
    browser.until(
        lambda g: [k["values"] for k in g.known["knobs"] if k["name"] == "x"] == [[[2.0, 2]]]
    )
    browser.ask("knob.set", knob="x", value=1.0)


def test_a_session_without_control_can_only_stop_all_actions(run, dashboard, browser):
    drive(browser)
    other = Browser(dashboard.links[-1], name="bob")
    bodies = {
        "knob.set": {"knob": "x", "value": 2.0},
        "knob.unset": {"knob": "x"},
        "propose": {"action": {"kind": "drain", "group": "g0"}},
        "approve": {"proposal": "p1.1"},
        "deny": {"proposal": "p1.1"},
        "actions.resume": {},
    }
    assert set(bodies) == ACTS - {"actions.stop", "annotate", "control.take", "control.release"}
    for verb, body in bodies.items():
        answer = other.ask(verb, **body)
        assert not answer["ok"]
        assert "does not have control, ann." in answer["text"]
    assert other.ask("actions.stop")["ok"]
    assert run.ask("status")["stopped"]
    assert browser.ask("actions.resume")["ok"]


def test_no_client_can_use_another_session(dashboard, browser):
    drive(browser)
    other = Browser(dashboard.links[-1], name="ann")
    session = browser.ask("control.take", lease_s=600)["text"].split()[0]
    for body in ({"knob": "x", "value": 2.0, "session": session}, {"knob": "x", "value": 2.0}):
        assert "does not have control" in other.ask("knob.set", **body)["text"]
    other.name = session
    assert not other.ask("knob.set", knob="x", value=2.0)["ok"]


def test_two_dashboards_show_the_same_and_one_controller(run, dashboard, browser):
    second = Dashboard(run, number=2)
    try:
        other = Browser(second.links[-1], name="bob")
        for one in (browser, other):
            one.listen()
        drive(browser)
        other.until(lambda g: g.controller.startswith("ann."))
        assert not other.ask("control.take")["ok"]
        assert other.ask("control.take", force=True)["ok"]
        browser.until(lambda g: g.controller.startswith("bob."))
        other.ask("control.release")
    finally:
        assert second.end() == 0


def test_every_request_is_in_the_trajectory_with_its_session(run, browser):
    drive(browser)
    browser.ask("propose", action={"kind": "checkpoint"})
    sessions = until(
        lambda: [
            body["session"]
            for _, body in run.records("request")
            if body["want"].get("action", {}).get("kind") == "checkpoint"
        ]
    )
    assert sessions[-1].startswith("ann.")


def test_a_dashboard_that_is_killed_takes_nothing_with_it_and_the_next_lets_the_browser_in(run):
    first = Dashboard(run, number=3)
    browser = Browser(first.links[-1])
    drive(browser)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    step = run.worker("g0-0")["step"]
    until(lambda: run.worker("g0-0")["step"] > step)
    second = Dashboard(run, number=4)
    browser.host = second.links[-1].split("/")[2]
    browser.origin = f"http://{browser.host}"
    browser.listen()
    browser.until(lambda g: g.state("g0-0") == "training")
    assert browser.ask("control.release")["ok"]
    assert second.end() == 0


def test_a_dashboard_started_by_a_weaver_ends_when_its_standard_input_is_closed(run):
    dashboard = Dashboard(run, 2, "--beside", stdin=subprocess.PIPE)
    dashboard.process.stdin.close()
    assert dashboard.process.wait(DEADLINE_S) == 0


def test_a_weaver_and_its_dashboard_end_without_a_warning(start_run):
    run = start_run(CONFIG)
    run.start_weaver("--dashboard")
    until(lambda: "dashboard link" in (run.folder / "weaver-1.out").read_text())
    run.weaver.terminate()
    assert run.weaver.wait(DEADLINE_S) == 0
    assert "WARNING" not in run.weaver.errors.read_text()


def test_a_page_shows_when_the_weaver_is_away_and_when_it_is_back(run, browser):
    browser.listen()
    browser.until(lambda g: g.known.get("run", {}).get("age_s") is not None)
    run.kill_weaver()
    browser.until(lambda g: g.known["run"]["age_s"] > 3 and "Weaver" in g.known["run"]["trouble"])
    assert not browser.ask("control.take")["ok"]
    run.start_weaver()
    browser.until(lambda g: g.known["run"]["age_s"] < 3 and not g.known["run"]["trouble"])
    browser.until(lambda g: g.state("g0-0") == "training")


@pytest.mark.parametrize(
    ("verb", "data", "status"),
    [
        ("status", b'{"name": "ann"}', 200),
        ("no.verb", b'{"name": "ann"}', 200),
        ("$SYS", b'{"name": "ann"}', 200),
        ("knob.set", b"", 200),
        ("knob.set", b"{", 200),
        ("knob.set", b"[" * 60_000, 200),
        ("knob.set", b'{"name": "ann", "body": {}, "more": 1}', 200),
        ("knob.set", b'{"name": "a b", "body": {"knob": "x", "value": 1}}', 200),
        ("knob.set", b'{"name": "", "body": {"knob": "x", "value": 1}}', 200),
        ("knob.set", b"x" * (MOST_BYTES + 1), 413),
    ],
)
def test_an_invalid_request_of_a_page_is_answered_in_a_line(browser, verb, data, status):
    found, _, text = browser.request("POST", f"/ask/{verb}", data)
    assert found == status
    answer = json.loads(text)
    assert not answer["ok"]
    assert "\n" not in answer["text"]


def test_a_browser_with_invalid_messages_is_disconnected_and_others_are_not(dashboard, browser):
    browser.listen()
    other = Browser(dashboard.links[-1])
    for invalid in ("{", '{"metric": "<b>"}', '{"look": 1}', "x" * 60_000, b"bytes"):
        other.listen()
        other.socket.send(invalid)
        other.is_let_go()
    browser.until(lambda g: g.state("g0-0") == "training")
