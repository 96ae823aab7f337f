"""Driving a real torchft run from its page: knobs at one step, approvals, a move, and restarts."""

import re
import signal

import pytest

from tests.browser.person import apart, drive, leave
from tests.integration.browser import Dashboard
from tests.integration.conftest import until
from tests.integration.moves import CONFIG as MOVES
from tests.integration.moves import Moves

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = f"""
{MOVES}
[dashboard]
port = 0

[guard]
window_s = 2.0

[arbiter.actions.migrate]
approval = true

[arbiter.actions.checkpoint]
approval = true

[policies.thresholds]
rules = [
    {{ metric = "ill", level = 0.5, action = "migrate", gain_gpu_s = 900.0, cost_gpu_s = 3.0 }},
    {{ metric = "odd", level = 0.5, action = "checkpoint", gain_gpu_s = 9.0, expires_s = 2.0 }},
]
"""
GROUPS = ("g0", "g1", "g2")


def say(run, **counters):
    """Have g1's node tell these counters."""
    path = run.folder / "g1.prom"
    scratch = path.with_suffix(".tmp")
    scratch.write_text("".join(f"{name} {value}\n" for name, value in counters.items()))
    scratch.replace(path)


@pytest.fixture(scope="module")
def moves(start_run):
    run = start_run(CONFIG)
    say(run, ill=0, odd=0)
    run.start_weaver()
    moves = Moves(run, until)
    textfile = str(run.folder / "g1.prom")
    for group in GROUPS:
        moves.start(group, **({"TORCHLOOM_TEXTFILE": textfile} if group == "g1" else {}))
    moves.start("g3", standby=True)
    moves.in_state("training", *GROUPS)
    moves.in_state("standby", "g3")
    return moves


@pytest.fixture(scope="module")
def run(moves):
    return moves.run


@pytest.fixture(scope="module")
def dashboard(run):
    dashboard = Dashboard(run)
    yield dashboard
    dashboard.end()


@pytest.fixture
def tab(dashboard, new_tab):
    """A page whose person drives."""
    tab = new_tab()
    tab.page.goto(dashboard.links[-1])
    drive(tab)
    yield tab
    leave(tab)


def show(tab, screen):
    tab.page.get_by_role("tab", name=screen).click()


def test_a_knob_of_the_whole_run_lands_at_one_step_and_is_turned_back(tab, run):
    page = tab.page
    show(tab, "Knobs")
    field = page.get_by_label("new value of lr", exact=True)
    tab.waits(field.is_enabled)
    was = apart(lambda: run.ask("knobs"))["values"]["g0-0"]["lr"]
    field.fill(str(was / 2))
    page.keyboard.press("Enter")
    show(tab, "Record")
    page.get_by_text(re.compile(r"applied at step \d+ on 3 ranks")).first.wait_for()
    tab.sees("did no harm")
    show(tab, "Knobs")
    page.get_by_role("button", name=f"Undo: back to {was:g}").click()
    tab.waits(lambda: apart(lambda: run.ask("knobs"))["values"]["g0-0"]["lr"] == was)


def test_a_proposal_without_an_approval_expires(tab, run):
    show(tab, "Run")
    say(run, ill=0, odd=1)
    tab.page.get_by_role("button", name=re.compile("^Approve p")).wait_for()
    tab.sees("No pending approvals. Proposals without an approval expire.")
    show(tab, "Record")
    tab.sees("expired: not approved in time")
    assert not run.trainers["g0"][0].journal("checkpoint")


def test_a_person_denies_a_proposal_with_a_reason(tab, run):
    show(tab, "Run")
    say(run, ill=1, odd=0)
    deny = tab.page.get_by_role("button", name=re.compile("^Deny p"))
    deny.wait_for()
    tab.answers = "the node was just replaced"
    deny.click()
    tab.sees("No pending approvals. Proposals without an approval expire.")
    show(tab, "Record")
    tab.sees(re.compile("denied by .*: the node was just replaced"))
    say(run, ill=0, odd=0)


def test_a_move_is_approved_with_its_price_in_sight_and_followed_to_its_end(tab, run):
    show(tab, "Run")
    say(run, ill=1, odd=0)
    tab.page.get_by_text(re.compile("thresholds proposes migrate .*g1")).first.wait_for()
    tab.sees(re.compile(r"gain .* 900 GPU-s, probability 1, cost 3 GPU-s: expected net gain 897"))
    tab.sees(re.compile(r"^proposed at \d\d:\d\d:\d\d, .* ago, with the numbers of that moment$"))
    tab.page.get_by_role("button", name=re.compile("^Approve p")).click()
    tab.sees("g3-0 joined, then g1 drained")
    tab.waits(lambda: "migrate group g1 is done: g3-0 joined" in tab.message)
    show(tab, "Fleet")
    page = tab.page
    page.get_by_label("find a worker").fill("g3-0")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="g3-0").wait_for()
    page.get_by_text("training").first.wait_for()
    assert run.trainers["g1"][0].process.wait() == 0


def test_it_goes_on_over_a_restart_of_the_weaver_and_of_the_broker(tab, run):
    page = tab.page
    run.weaver.send_signal(signal.SIGKILL)
    run.kill_broker()
    run.weaver.wait()
    tab.sees("no answer from the Weaver")
    apart(run.start_weaver)
    page.get_by_text("no answer from the Weaver").first.wait_for(state="hidden")
    show(tab, "Run")
    well = page.get_by_label("Run health")
    tab.waits(lambda: "3 ranks train" in well.inner_text())
    tab.sees("control is free")  # a Weaver that starts anew knows no lease
    drive(tab)
    show(tab, "Knobs")
    page.get_by_role("button", name="stop all actions").click()
    tab.waits(lambda: apart(lambda: run.ask("status"))["stopped"])
    page.get_by_role("button", name="resume actions").click()
    tab.waits(lambda: not apart(lambda: run.ask("status"))["stopped"])
