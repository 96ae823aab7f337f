"""A Weaver whose state was lost, on a host whose clock is behind, controls the workers."""

import shutil
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import until

pytestmark = pytest.mark.integration

BEHIND = [sys.executable, Path(__file__).parent.parent / "clock_behind.py", "3600", "weaver"]


@pytest.mark.long
def test_a_weaver_without_state_an_hour_behind_takes_a_higher_epoch_and_is_obeyed(start_run):
    run = start_run("[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n")
    run.start_weaver()
    trainer = run.start_light("g0")
    until(lambda: run.worker("g0-0"))
    obeyed = run.ask("status")["epoch"]
    assert run.torchloom("knob", "set", "x", "2").returncode == 0

    run.kill_weaver()
    run.kill_broker()
    shutil.rmtree(run.state)
    weaver = run.start_weaver(command=BEHIND)
    until(lambda: run.worker("g0-0"))
    until(lambda: run.ask("status")["epoch"] > obeyed)
    until(lambda: run.worker("g0-0"))
    result = run.torchloom("knob", "set", "x", "3")
    assert result.returncode == 0, result
    assert [row["value"] for row in trainer.journal("set")] == [2.0, 3.0]
    log = weaver.errors.read_text()
    assert f"g0-0 has obeyed epoch {obeyed}, above this Weaver" in log
    assert "the clock of g0-0's host (node node-g0) is 36" in log
    assert "Traceback" not in log
