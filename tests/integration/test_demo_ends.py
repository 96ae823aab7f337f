"""Real demos that are ended early leave no process running, in any scenario."""

import signal
import subprocess
import sys

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.demos.bandwidth.links import marks_of_links
from torchloom_core.demos.folder import MARK
from torchloom_core.demos.marks import VARIABLE
from torchloom_core.demos.stage import stage

pytestmark = [pytest.mark.integration, pytest.mark.long]


def processes_of(mark):
    return [
        process.info["cmdline"]
        for process in psutil.process_iter(["environ", "cmdline"])
        if (process.info["environ"] or {}).get(VARIABLE) == mark
    ]


@pytest.mark.parametrize(
    ("scenario", "number"),
    [
        ("node", signal.SIGTERM),
        ("hang", signal.SIGKILL),
        ("knobs", signal.SIGTERM),
        ("bandwidth", signal.SIGTERM),
        ("bandwidth", signal.SIGKILL),
        ("checkpoints", signal.SIGTERM),
        ("checkpoints", signal.SIGKILL),
    ],
)
def test_a_demo_that_trains_is_ended_with_all_of_its_processes(tmp_path, scenario, number):
    command = [sys.executable, "-m", "torchloom_core.cli", "demo"]
    command += ["--scenario", scenario, "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as demo:
        try:
            until(lambda: any(log.stat().st_size for log in tmp_path.glob("*/g0*.jsonl")))
            mark = (tmp_path / MARK).read_text()
            # Weaver, broker, lighthouse or torchrun, three trainers and their sidecars.
            until(lambda: len(processes_of(mark)) >= 9)
            demo.send_signal(number)
            demo.wait(DEADLINE_S)
        finally:
            demo.kill()
    if number == signal.SIGKILL:
        with stage(tmp_path):
            assert list(tmp_path.iterdir()) == [tmp_path / MARK]
    else:
        assert demo.returncode == 143
    assert processes_of(mark) == []
    assert mark not in marks_of_links()
