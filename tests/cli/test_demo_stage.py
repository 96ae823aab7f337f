"""A demo's processes end with it, or with the next demo in its folder."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.demos.bandwidth.links import ShapedLinks, marks_of_links
from torchloom_core.demos.bandwidth.namespaces import reason_for_none
from torchloom_core.demos.folder import MARK
from torchloom_core.demos.marks import VARIABLE, own_mark
from torchloom_core.demos.stage import stage
from torchloom_core.floor.errors import StateError

pytestmark = pytest.mark.integration

PLAY = """
import os, subprocess, sys, time
from pathlib import Path
from torchloom_core.cli import Terminated
from torchloom_core.demos.bandwidth.links import ShapedLinks
from torchloom_core.demos.marks import VARIABLE, own_mark
from torchloom_core.demos.processes import Processes
from torchloom_core.demos.scenario import Training
from torchloom_core.demos.stage import stage

folder, how = Path(sys.argv[1]), sys.argv[2]
sleep = ["sleep", "600"]
try:
    with stage(folder):
        (folder / "run").mkdir()
        if how == "child":
            pid = Processes(folder / "run", Training()).spawn("sleep", sleep, {}).pid
        else:
            env = {**os.environ, VARIABLE: own_mark()}
            pid = subprocess.Popen(sleep, env=env, start_new_session=True).pid
        if how == "links":
            ShapedLinks(2).running().__enter__()
        print(pid, flush=True)
        if how != "over":
            time.sleep(600)
except Terminated:
    sys.exit(143)
except KeyboardInterrupt:
    sys.exit(130)
"""


@contextmanager
def playing(folder, how="detached", **options):
    """Run a demo that starts a process; yield both processes."""
    command = [sys.executable, "-c", PLAY, str(folder), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as demo:
        started = psutil.Process(int(demo.stdout.readline()))
        try:
            yield demo, started
        finally:
            demo.kill()
            with suppress(psutil.NoSuchProcess):
                started.kill()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "demo"


def has_ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 143)]
)
def test_a_signal_ends_a_demo_and_its_processes(folder, number, status):
    with playing(folder) as (demo, started):
        demo.send_signal(number)
        assert demo.wait(DEADLINE_S) == status
        assert has_ended(started)


def test_sigterm_ends_a_demo_that_a_shell_runs_in_the_background(folder):
    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with playing(folder, preexec_fn=ignore) as (demo, started):
        demo.terminate()
        assert demo.wait(DEADLINE_S) == 143
        assert has_ended(started)


def test_a_finished_demo_has_ended_its_processes(folder):
    with playing(folder, "over") as (demo, started):
        assert demo.wait(DEADLINE_S) == 0
        assert has_ended(started)


def test_a_demo_first_ends_only_the_processes_of_a_killed_one(folder):
    with playing(folder.with_name("other")) as (other, others), playing(folder) as (demo, started):
        demo.kill()
        demo.wait()
        assert not has_ended(started)
        with stage(folder):
            assert has_ended(started)
            assert not (folder / "run").exists()
        assert not has_ended(others)
        assert other.poll() is None


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG needs Linux")
def test_a_trainer_ends_when_its_demo_is_killed(folder):
    with playing(folder, "child") as (demo, started):
        demo.kill()
        demo.wait()
        until(lambda: has_ended(started))


def test_two_demos_do_not_run_in_one_folder(folder):
    with playing(folder) as (demo, started):
        with pytest.raises(StateError, match="another demo is running there"), stage(folder):
            pass
        assert not has_ended(started)
        assert demo.poll() is None


def test_an_empty_mark_ends_nothing(folder):
    folder.mkdir()
    bystander = subprocess.Popen(["sleep", "600"], env={**os.environ, VARIABLE: ""})
    try:
        (folder / MARK).write_text("")
        with stage(folder):
            assert (folder / MARK).read_text() == own_mark()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_the_next_demo_takes_down_links_that_are_left(folder):
    if reason := reason_for_none():
        pytest.skip(f"no lab here: {reason}")
    with playing(folder, "links") as (demo, _):
        mark = (folder / MARK).read_text()
        demo.kill()
        # The zombie still has its PID.
        until(lambda: psutil.Process(demo.pid).status() == psutil.STATUS_ZOMBIE)
        assert mark in marks_of_links()
        with stage(folder):
            assert mark not in marks_of_links()


def test_links_of_another_folder_are_taken_down_unless_its_demo_may_run(folder, tmp_path):
    if reason := reason_for_none():
        pytest.skip(f"no lab here: {reason}")
    with playing(folder, "links") as (demo, _):
        mark = (folder / MARK).read_text()
        with stage(tmp_path / "another"):
            assert mark in marks_of_links()
        demo.kill()
        demo.wait()
        with stage(tmp_path / "another"):
            assert mark not in marks_of_links()


def test_shaped_links_have_the_mark_of_their_demo():
    if reason := reason_for_none():
        pytest.skip(f"no lab here: {reason}")
    with ShapedLinks(1).running():
        assert own_mark() in marks_of_links()
    assert own_mark() not in marks_of_links()
