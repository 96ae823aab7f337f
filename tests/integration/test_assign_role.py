"""A node changes between two programs of a run, under a real Weaver."""

import subprocess
import sys

import psutil
import pytest

from tests.integration.conftest import LIGHT_TRAINER

pytestmark = [pytest.mark.integration, pytest.mark.long]

CONFIG = '[weaver]\nstate_dir = "state"\ntick_s = 0.2\n[arbiter]\nmax_in_motion_share = 1.0\n'


def start_agent(run, node, first):
    command = [sys.executable, "-m", "torchloom_core.cli", "node-agent", "--start", first]
    for role in ("trainer", "rollout"):
        journal = run.folder / f"{node}-{role}.journal"
        command += ["--role", f"{role}={sys.executable} {LIGHT_TRAINER} --journal {journal}"]
    return run._start(node, subprocess.Popen, command, {"TORCHLOOM_NODE": node})


def test_a_node_changes_its_role_between_two_steps_and_back(start_run, until):
    run = start_run(CONFIG)
    run.start_weaver()
    agents = {node: start_agent(run, node, "trainer") for node in ("n0", "n1")}
    start_agent(run, "n2", "rollout")
    run.training("n0", "n1", "rollout-n2", "node-agent-n0", "node-agent-n1", "node-agent-n2")

    moved = run.torchloom("assign-role", "n1", "rollout")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    assert "n1 drained, its nodes start role rollout" in moved.stdout
    run.training("rollout-n1")
    assert run.worker("n1-0")["state"] in ("left", "gone")

    refused = run.torchloom("assign-role", "n0", "rollout")
    assert "need at least 1 group left training, would be 0" in refused.stdout + refused.stderr

    [worker] = [
        child
        for child in psutil.Process(agents["n1"].process.pid).children()
        if str(LIGHT_TRAINER) in child.cmdline()
    ]
    worker.kill()
    before = run.worker("rollout-n1-0")["incarnation"]
    until(lambda: run.worker("rollout-n1-0")["incarnation"] > before)
    run.training("rollout-n1")

    assert run.torchloom("assign-role", "rollout-n1", "trainer").returncode == 0
    run.training("n1")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--role", "trainer"), "--role: need NAME=COMMAND, such as trainer='python x.py'"),
        (("--role", "a=no-such-program x"), "--role a: no program is called 'no-such-program'"),
        (("--role", "a=true", "--role", "a=false"), "need one command for each role, a has two"),
        (("--role", "a=true", "--start", "b"), "--start: need one of a, was 'b'"),
        (("--role", "a=true 'x"), "--role a: No closing quotation"),
    ],
)
def test_a_wrong_call_is_answered_with_one_line(start_run, words, why):
    done = start_run(CONFIG).torchloom("node-agent", *words)
    assert done.returncode == 2
    assert why in done.stderr
    assert "Traceback" not in done.stderr
