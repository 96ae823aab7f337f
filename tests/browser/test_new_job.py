"""What was set in an earlier job is offered on the page, and not set by itself."""

import pytest

from tests.browser.person import apart, drive
from tests.integration.browser import CONFIG
from tests.integration.conftest import until

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    return run


def restart(run, job):
    """End the trainer, start it as of another job, and wait until it trains at its own value."""
    for trainer in run.trainers.get("g0", [])[-1:]:
        trainer.process.kill()
        until(lambda: run.worker("g0-0")["ending"] == "killed")
    run.start_light("g0", "--step-s", "0.05", TORCHLOOM_JOB=job)
    run.training("g0")
    assert run.worker("g0-0")["knobs"]["x"] == 1.0


def test_a_knob_of_an_earlier_job_is_taken_or_dropped_by_a_click(run, dashboard, new_tab):
    apart(lambda: restart(run, "monday"))
    apart(lambda: run.ask("knob.set", {"knob": "x", "value": 5.0}))
    tab = new_tab()
    tab.page.goto(dashboard.links[-1])
    drive(tab)
    for click, is_set in (("take x", 5.0), ("drop x", 1.0)):
        apart(lambda click=click: restart(run, click.replace(" ", "-")))
        tab.sees("x = 5, set in an earlier job")
        tab.page.get_by_role("button", name=click).click()
        tab.waits(lambda: not apart(lambda: run.ask("status"))["knobs_waiting"])
        tab.waits(lambda v=is_set: apart(lambda: run.worker("g0-0"))["knobs"]["x"] == v)
        tab.sees("No pending approvals. Proposals without an approval expire.")
