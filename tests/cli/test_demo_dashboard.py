"""The demo's dashboard: its links are printed, and it is restarted after a crash."""

import io
import sys

import pytest
from rich.console import Console

from tests.waiting import until
from torchloom_core.demos.dashboard import TRAINING, _DashboardProcess
from torchloom_core.demos.processes import Processes
from torchloom_core.floor.errors import StateError

pytestmark = pytest.mark.integration

STAYS = "import os, time; print(f'http://127.0.0.1:29512/?token={os.getpid()}', flush=True); "


class Scripted(Processes):
    """A demo's processes, with a script as the dashboard."""

    script = ""

    def command(self, *words):
        self.words = words
        return [sys.executable, "-c", self.script]


@pytest.fixture
def stage(tmp_path):
    processes = Scripted(tmp_path, TRAINING)
    return processes, Console(file=io.StringIO(), width=200)


def test_a_killed_dashboard_is_reported_and_restarted(stage):
    processes, console = stage
    processes.script = f"{STAYS} time.sleep(1000)"
    dashboard = _DashboardProcess(processes, console)

    def links():
        dashboard.poll()
        return console.file.getvalue().count("token=")

    until(lambda: links() == 1)
    dashboard._process.kill()
    until(lambda: links() == 2)
    assert processes.words[-2:] == ("--port", "29512")
    dashboard._process.kill()
    dashboard._process.wait()
    assert "the dashboard exited with status -9: restarting it" in console.file.getvalue()


def test_a_dashboard_that_does_not_start_ends_the_demo_with_its_log(stage, tmp_path):
    processes, console = stage
    processes.script = "raise SystemExit(12)"
    dashboard = _DashboardProcess(processes, console)
    dashboard._process.wait()
    with pytest.raises(StateError, match=r"the dashboard did not start; see .*dashboard\.err"):
        dashboard.poll()
