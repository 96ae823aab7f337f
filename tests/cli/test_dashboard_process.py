"""The dashboard beside a Weaver: its end is logged, and it is restarted after a crash."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.cli import dashboard_command

pytestmark = pytest.mark.integration

SUPERVISES = """
import sys
from torchloom_core.cli.dashboard_command import _DashboardProcess
_DashboardProcess([sys.executable, "-c", sys.argv[1]]).supervise()
"""
ENDS_WITH_IT = """
import os, time
from torchloom_core.cli.dashboard_command import end_with_the_weaver
end_with_the_weaver()
print(os.getpid(), flush=True)
time.sleep(1000)
"""
STAYS = "import os, pathlib, time; f = pathlib.Path('{}'); f.write_text(str(os.getpid()))"


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(dashboard_command, "_CTRL_C_S", 0.1)
    monkeypatch.setattr(dashboard_command, "_STARTS_S", 0.0)


@contextlib.contextmanager
def supervised(script):
    process = dashboard_command._DashboardProcess([sys.executable, "-c", script])
    thread = threading.Thread(target=process.supervise)
    thread.start()
    yield thread
    process.end()
    thread.join()


def test_a_killed_dashboard_is_restarted_and_ends_with_the_weaver(tmp_path, caplog, soon):
    path = tmp_path / "pid"
    script = f"{STAYS.format(path)}; time.sleep(1000)"
    with supervised(script):
        until(lambda: path.exists() and path.read_text())
        first = int(path.read_text())
        os.kill(first, signal.SIGKILL)
        until(lambda: path.read_text() not in ("", str(first)))
        second = int(path.read_text())
    assert "the dashboard exited with status -9: restarting it" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


@pytest.mark.parametrize("status", [0, 12])
def test_a_dashboard_that_fails_to_start_or_exits_is_not_restarted(caplog, monkeypatch, status):
    monkeypatch.setattr(dashboard_command, "_CTRL_C_S", 0.1)
    with supervised(f"raise SystemExit({status})") as thread:
        thread.join()
    line = f"the dashboard exited with status {status}: the Weaver continues without it"
    assert caplog.text.count("the dashboard") == 1
    assert line in caplog.text


def test_a_dashboard_that_ends_with_the_weaver_is_not_logged(tmp_path, caplog):
    path = tmp_path / "pid"
    with supervised(f"{STAYS.format(path)}; raise SystemExit(0)"):
        until(lambda: path.exists() and path.read_text())
    assert caplog.text == ""


def test_a_dashboard_ends_when_its_weaver_is_killed():
    command = [sys.executable, "-c", SUPERVISES, ENDS_WITH_IT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as weaver:
        dashboard = int(weaver.stdout.readline())
        weaver.kill()
        try:
            weaver.communicate(timeout=DEADLINE_S)  # both have closed the pipe
        except subprocess.TimeoutExpired:
            os.kill(dashboard, signal.SIGKILL)
            raise
