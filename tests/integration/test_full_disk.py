"""The disk of the state folder fills up, and has room again."""

from itertools import groupby

import pytest

from tests.small_disk import fill, small_disk

pytestmark = pytest.mark.integration

CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.1

[arbiter]
cooldown_s = 0
"""


@pytest.fixture
def run(start_run):
    run = start_run(CONFIG)
    with small_disk(run.state, 64):
        yield run
        run.close()


def test_with_a_full_disk_the_weaver_continues_and_records_again_once_there_is_space(run, until):
    run.start_weaver()
    run.start_light("g0", "--step-s", "0.02")
    run.training("g0")
    filled = fill(run.state / "fill", leave_bytes=1 << 20)  # which is left to the nats-server
    until(lambda: run.ask("status")["recording"].startswith("paused since "))
    assert run.ask("knob.set", {"knob": "x", "value": 1.0})["ok"]
    until(lambda: run.worker("g0-0")["knobs"]["x"] == 1.0)

    fill(filled)
    stopped = run.torchloom("actions", "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert run.ask("status")["stopped"]
    step = run.worker("g0-0")["step"]
    until(lambda: run.worker("g0-0")["step"] > step)

    filled.unlink()
    until(lambda: not run.ask("status")["recording"])
    resumed = run.torchloom("actions", "resume")  # asks twice: the nats-server may restart now
    assert resumed.returncode == 0, resumed.stderr
    assert run.ask("knob.set", {"knob": "x", "value": 2.0, "id": "again"})["ok"]
    until(lambda: run.worker("g0-0")["knobs"]["x"] == 2.0)
    assert run.weaver.poll() is None
    log = run.weaver.errors.read_text()
    assert "notice: recording paused: " in log
    assert "notice: recording resumed: " in log

    ((_, gap),) = run.records("recording_gap")
    assert gap["last"] > gap["first"] > 1
    requests = [body["want"]["want"] for _, body in run.records("request")]
    assert [kind for kind, _ in groupby(requests)] == ["resume_actions", "propose"]
    replayed = run.torchloom("trajectory", "replay").stdout
    missing = f"all the same up to a gap: inputs {gap['first']} to {gap['last']} are missing"
    assert missing in " ".join(replayed.split())
