"""The dashboard beside a Weaver: what becomes of it is said, and one that dies comes again."""

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.cli import dashboard_process

pytestmark = pytest.mark.integration

KEEPS = """
import sys
from torchloom_core.cli.dashboard_process import _Beside
_Beside([sys.executable, "-c", sys.argv[1]]).keep()
"""
ENDS_WITH_IT = """
import os, time
from torchloom_core.cli.dashboard_process import end_with_the_weaver
end_with_the_weaver()
print(os.getpid(), flush=True)
time.sleep(1000)
"""
STAYS = "import os, pathlib, time; f = pathlib.Path('{}'); f.write_text(str(os.getpid()))"


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(dashboard_process, "_TOGETHER_S", 0.1)
    monkeypatch.setattr(dashboard_process, "_STARTS_S", 0.0)


@contextlib.contextmanager
def kept(script):
    beside = dashboard_process._Beside([sys.executable, "-c", script])
    keeping = threading.Thread(target=beside.keep)
    keeping.start()
    yield keeping
    beside.end()
    keeping.join()


def test_one_that_is_killed_is_started_again_and_ends_with_the_weaver(tmp_path, caplog, soon):
    path = tmp_path / "pid"
    script = f"{STAYS.format(path)}; time.sleep(1000)"
    with kept(script):
        until(lambda: path.exists() and path.read_text())
        first = int(path.read_text())
        os.kill(first, signal.SIGKILL)
        until(lambda: path.read_text() not in ("", str(first)))
        second = int(path.read_text())
    assert "the dashboard has ended with status -9: it is started again" in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


@pytest.mark.parametrize("status", [0, 12])
def test_one_that_cannot_serve_or_was_told_to_end_is_let_be(caplog, monkeypatch, status):
    monkeypatch.setattr(dashboard_process, "_TOGETHER_S", 0.1)
    with kept(f"raise SystemExit({status})") as keeping:
        keeping.join()
    said = f"the dashboard has ended with status {status}: the Weaver goes on without one"
    assert caplog.text.count("the dashboard") == 1
    assert said in caplog.text


def test_one_that_ends_with_the_weaver_is_no_news(tmp_path, caplog):
    path = tmp_path / "pid"
    with kept(f"{STAYS.format(path)}; raise SystemExit(0)"):
        until(lambda: path.exists() and path.read_text())
    assert caplog.text == ""


def test_one_whose_weaver_is_killed_ends_too():
    command = [sys.executable, "-c", KEEPS, ENDS_WITH_IT]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as weaver:
        dashboard = int(weaver.stdout.readline())
        weaver.kill()
        try:
            weaver.communicate(timeout=DEADLINE_S)  # what both print to is closed by both
        except subprocess.TimeoutExpired:
            os.kill(dashboard, signal.SIGKILL)
            raise
