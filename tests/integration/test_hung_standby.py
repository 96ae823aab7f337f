"""A standby whose script hangs in a preview does not count as available."""

import pytest

from tests.integration.preview_trainer import NEWEST, Script

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1
stale_after_s = 3.0
command_deadline_s = 2.0

[arbiter]
cooldown_s = 0
"""
TRIAL = {"action": {"kind": "preview", "values": {"x": 2}, "seconds": 0.5}}


@pytest.fixture
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    run.start_light("g0", "--step-s", "0.02")
    run.training("g0")
    Script().save(run.folder / NEWEST)
    return run


def accepted_by(run):
    statuses = [body for _, body in run.records("command_status")]
    return [status["worker"] for status in statuses if status["status"] == "accepted"]


def silent(run, worker):
    return run.worker(worker)["heartbeat_age_s"] > 3.0


@pytest.mark.long
def test_it_is_silent_until_it_is_back_and_another_is_used_meanwhile(run, until):
    hung = run.start_preview_trainer("v0")
    until(lambda: (run.worker("v0-0") or {}).get("state") == "standby")
    hung.hold.touch()
    assert run.ask("propose", TRIAL)["ok"]
    until(lambda: silent(run, "v0-0"))
    until(lambda: run.records("outcome"))
    run.start_preview_trainer("v1")
    until(lambda: (run.worker("v1-0") or {}).get("state") == "standby")
    assert run.ask("propose", TRIAL)["ok"]
    until(lambda: accepted_by(run) == ["v0-0", "v1-0"])
    hung.hold.unlink()
    until(lambda: not silent(run, "v0-0"))
    assert run.worker("v0-0")["state"] == "standby"
