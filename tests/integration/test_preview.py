"""``torchloom preview`` with a real Weaver, broker, trainer and standby, to the plot."""

import json
import signal
import subprocess
import sys

import pytest
import torch

from tests.deadlines import DEADLINE_S
from tests.integration.browser import CONFIG, Browser, Dashboard
from tests.integration.conftest import standing_by
from tests.integration.preview_trainer import NEWEST, Script

pytestmark = [pytest.mark.integration, pytest.mark.long]


@pytest.fixture(scope="module")
def run(start_run):
    """A run with one group that trains, and has the knob ``x``."""
    run = start_run(CONFIG)
    run.start_weaver()
    run.start_light("g0", "--step-s", "0.02")
    run.training("g0")
    return run


def newest(run):
    script = Script()
    torch.manual_seed(1)
    for _ in range(30):
        script.step()
    script.save(run.folder / NEWEST)


@pytest.fixture
def v0(run):
    """A standby that offers to try changes out, and has a checkpoint of the run's."""
    newest(run)
    yield from _standing_by(run, "v0")


def _standing_by(run, group, **environment):
    standby = run.start_preview_trainer(group, **environment)
    return standing_by(run, standby, f"{group}-0")


@pytest.fixture
def trying(run, v0, until):
    """A person's request for a preview that is stopped at its first step, awaiting its end."""
    before = len(v0.journal("step"))
    v0.hold.touch()
    command = [sys.executable, "-m", "torchloom_core.cli", "preview", "x=20", "--json"]
    with subprocess.Popen(
        command, cwd=run.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        until(lambda: len(v0.journal("step")) == before + 1)
        yield process
        process.kill()
    v0.hold.unlink(missing_ok=True)


def statuses_of(run, verb, status):
    recorded = [body for _, body in run.records("command_status")]
    return [
        recorded_status
        for recorded_status in recorded
        if (recorded_status["verb"], recorded_status["status"]) == (verb, status)
    ]


def test_the_preview_equals_training_on_and_is_recorded(run, v0):
    words = ["x=20", "--steps", "8", "--seed", "3", "--json", "--plot", "seen.svg"]
    result = run.torchloom("preview", *words)
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    script, arms = Script(), {}
    for repeat in range(5):
        for arm, times in (("control", 1), ("change", 20)):
            script.load(run.folder / NEWEST)
            script.set_rate(times)
            torch.manual_seed(3 + repeat)
            arms[repeat, arm] = [script.step().item() for _ in range(8)]
    recorded = {(curve["repeat"], curve["arm"]): curve["losses"] for curve in seen["curves"]}
    assert recorded == arms
    assert seen["setup"]["before"] == {"x": pytest.approx(1.0)}
    assert seen["judgement"]["pairs"] == 5
    assert seen["end"]["why"] == ""
    assert (run.folder / "seen.svg").stat().st_size > 10_000
    again = run.torchloom("preview", run.trajectory, "--json")
    assert json.loads(again.stdout) == seen
    table = run.torchloom("preview", run.trajectory).stdout
    for part in ("preview on v0-0", "x 1.0 -> 20", "valid for 8 steps only"):
        assert part in table


@pytest.mark.long
def test_a_dashboard_started_later_shows_the_preview(run, v0):
    result = run.torchloom("preview", "x=20", "--steps", "2", "--repeats", "1", "--json")
    dashboard = Dashboard(run)
    try:
        browser = Browser(dashboard.links[-1])
        browser.listen(preview=True)
        browser.until(lambda g: "preview" in g.known)
        browser.close()
    finally:
        assert dashboard.end() == 0, dashboard.err.read_text()
    assert browser.known["preview"]["command"] == json.loads(result.stdout)["command"]
    assert dict(browser.known["preview"]["words"])["tried"].startswith("8 steps in ")


@pytest.mark.long
def test_the_training_rank_gets_no_command_and_the_cost_is_recorded_before(run, v0):
    trainer = run.trainers["g0"][-1]
    before = len(run.records("command_status"))
    result = run.torchloom("preview", "x=100", "--steps", "40", "--json")
    assert json.loads(result.stdout)["judgement"]["result"] == "worse"
    recorded = [body for _, body in run.records("command_status")][before:]
    assert {recorded_status["worker"] for recorded_status in recorded} == {"v0-0"}
    assert trainer.journal("set") == []
    proposed = [body for _, body in run.records("proposed")][-1]["proposal"]
    assert 0 < proposed["cost_gpu_s"] <= 120.0
    verdict = [body for _, body in run.records("verdict")][-1]
    assert verdict["net_gpu_s"] == -proposed["cost_gpu_s"]


@pytest.mark.long
def test_the_control_is_the_run_as_it_is_and_not_as_it_was_at_the_checkpoint(run, v0):
    assert run.torchloom("knob", "set", "x", "5").returncode == 0
    try:
        words = ["x=10", "--steps", "6", "--repeats", "1", "--seed", "3", "--json"]
        seen = json.loads(run.torchloom("preview", *words).stdout)
        assert seen["words"]["change"] == "x 5.0 -> 10"
        script = Script()
        script.load(run.folder / NEWEST)
        script.set_rate(5)
        torch.manual_seed(3)
        control = next(curve for curve in seen["curves"] if curve["arm"] == "control")
        assert control["losses"] == [script.step().item() for _ in range(6)]
        same = json.loads(run.torchloom("preview", "x=5", "--steps", "6", "--json").stdout)
        assert same["judgement"]["alike"]
    finally:
        run.torchloom("knob", "set", "x", "1", "--yes")
        run.torchloom("knob", "unset", "x")


@pytest.mark.long
def test_no_change_is_none_to_the_bit(run, v0):
    seen = json.loads(run.torchloom("preview", "x=1", "--steps", "6", "--json").stdout)
    assert seen["words"]["verdict"] == "no difference: both arms are bit-identical in 5 pairs"


@pytest.mark.long
def test_a_person_can_cancel_it_within_a_step(run, v0, until, trying):
    assert run.torchloom("preview", "--end").returncode == 0
    issued = len(statuses_of(run, "rehearse", "issued"))
    until(lambda: len(statuses_of(run, "rehearse", "accepted")) == issued)
    v0.hold.unlink()
    out, err = trying.communicate(timeout=DEADLINE_S)
    assert (trying.returncode, err) == (0, "")
    end = json.loads(out)["end"]
    assert end["points"] == 1
    assert "it was cancelled" in end["why"]


@pytest.mark.long
def test_ctrl_c_ends_it_and_shows_the_results_so_far(run, v0, until, trying):
    ended = len(statuses_of(run, "rehearse", "issued"))
    trying.send_signal(signal.SIGINT)
    until(lambda: len(statuses_of(run, "rehearse", "accepted")) == ended + 1)
    v0.hold.unlink()
    out, err = trying.communicate(timeout=DEADLINE_S)
    assert (trying.returncode, err) == (130, "")
    assert json.loads(out)["end"]["points"] == 1


@pytest.mark.long
def test_the_kill_switch_ends_it_on_the_stand_by_too(run, v0, until, trying):
    issued = len(statuses_of(run, "rehearse", "issued"))
    assert run.torchloom("actions", "stop").returncode == 0
    until(lambda: len(statuses_of(run, "rehearse", "accepted")) == issued + 1)
    v0.hold.unlink()
    _, err = trying.communicate(timeout=DEADLINE_S)
    assert (trying.returncode, err) == (5, "torchloom: undone: actions were stopped\n")
    assert run.torchloom("actions", "resume").returncode == 0


@pytest.mark.long
def test_a_stand_by_that_is_wanted_joins_at_the_next_step(run, v0, until, trying):
    assert run.ask("propose", {"action": {"kind": "admit", "group": "v0"}})["ok"]
    until(lambda: statuses_of(run, "join", "accepted"))
    v0.hold.unlink()
    run.training("v0")
    out, err = trying.communicate(timeout=DEADLINE_S)
    assert (trying.returncode, err) == (0, "")
    assert "got another command" in json.loads(out)["end"]["why"]


@pytest.mark.long
def test_a_script_whose_arms_cannot_run_alike_is_one_line(run):
    newest(run)
    for standby in _standing_by(run, "n0", TEST_NOISE="1"):
        result = run.torchloom("preview", "x=2")
        assert result.returncode == 5
        assert "need a step that is reproducible from one state" in result.stderr
        assert result.stderr.count("\n") == 1
        assert standby.process.poll() is None
        assert run.worker("n0-0")["state"] == "standby"


@pytest.mark.long
def test_a_run_without_a_checkpoint_is_one_line(run):
    (run.folder / NEWEST).unlink(missing_ok=True)
    for _ in _standing_by(run, "e0"):
        result = run.torchloom("preview", "x=2")
        assert result.returncode == 5
        assert "FileNotFoundError" in result.stderr
        assert result.stderr.count("\n") == 1
