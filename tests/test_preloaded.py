"""A process forked from one with torch loaded is like any other."""

import os
import signal
import subprocess

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.preloaded import Preloaded
from tests.waiting import until

pytestmark = pytest.mark.integration

SCRIPT = """
import os, sys, threading, time
assert __name__ == "__main__" and not [name for name in sys.modules if "torchloom" in name]
print(*sys.argv[1:], os.environ["MINE"], os.environ.get("HOME"), os.getcwd(), sys.path[0], sep="|",
      file=sys.stderr, flush=True)
match sys.argv[1]:
    case "7":
        sys.exit(7)
    case "raises":
        raise ValueError("no such thing")
    case "sleeps":
        time.sleep(600)
    case "thread":  # is waited for, as at the end of any script, and still sees what it needs
        threading.Timer(0.2, lambda: print("late", sys.argv[1], file=sys.stderr)).start()
"""


@pytest.fixture
def start(tmp_path):
    script, errors = tmp_path / "script.py", tmp_path / "errors"
    script.write_text(SCRIPT)
    folder = tmp_path / "folder"
    folder.mkdir()
    started = []

    def start(*arguments):
        with errors.open("w") as file:
            environment = {"MINE": "mine", "PATH": os.environ["PATH"]}
            process = Preloaded([script, *arguments], env=environment, cwd=folder, stderr=file)
        started.append(process)
        return process, errors, f"mine|None|{folder}|{tmp_path}\n"

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.long
def test_it_has_its_own_arguments_environment_folder_and_errors(start):
    process, errors, known = start("7", "more")
    assert process.wait(DEADLINE_S) == 7
    assert process.poll() == process.returncode == 7
    assert errors.read_text() == f"7|more|{known}"


@pytest.mark.long
def test_an_error_is_its_exit_status_and_on_stderr(start):
    process, errors, known = start("raises")
    assert process.wait(DEADLINE_S) == 1
    text = errors.read_text()
    assert text.startswith(f"raises|{known}Traceback")
    assert text.endswith("ValueError: no such thing\n")
    assert 'script.py", line 10' in text


@pytest.mark.long
def test_it_is_stopped_killed_and_waited_for_as_any_other(start):
    process, errors, _ = start("sleeps")
    until(errors.read_text)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(signal.SIGSTOP)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    process.kill()
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


@pytest.mark.long
def test_a_thread_of_it_is_waited_for(start):
    process, errors, _ = start("thread")
    assert process.wait(DEADLINE_S) == 0
    assert errors.read_text().splitlines()[-1] == "late thread"
