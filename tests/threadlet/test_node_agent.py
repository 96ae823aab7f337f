"""The agent of a node without a Weaver: it starts a program, again if it fails, and ends."""

import os
import subprocess
import sys

import pytest

from tests.deadlines import DEADLINE_S

pytestmark = pytest.mark.integration

PROGRAM = """
import os, pathlib, sys
starts = pathlib.Path("starts")
with starts.open("a") as file:
    print(*(os.environ[f"TORCHLOOM_{name}"] for name in ("ROLE", "NODE", "GROUP")), file=file)
sys.exit(len(starts.read_text().splitlines()) < 2)
"""


def test_a_program_that_fails_is_started_again_and_one_that_finishes_ends_the_agent(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "torchloom_core.cli", "node-agent", "--node", "n3"]
    roles = ("--role", f"rollout={sys.executable} program.py", "--role", "trainer=true")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLOOM_")}
    done = subprocess.run(
        [*command, *roles, "--linger-s", "0.1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "starts").read_text() == "rollout n3 n3\n" * 2
    assert "n3: role rollout ended with status 1" in done.stderr


def test_a_program_that_is_gone_for_a_moment_does_not_end_the_agent(tmp_path):
    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\nrm $0\nexit 1\n")
    program.chmod(0o755)
    command = [sys.executable, "-m", "torchloom_core.cli", "node-agent", "--role", f"a={program}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLOOM_")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as agent:
        lines = iter(agent.stderr.readline, "")
        assert any("role a cannot be started" in line for line in lines)
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(0o755)
        assert any("role a ended with status 0" in line for line in lines)
        agent.terminate()
