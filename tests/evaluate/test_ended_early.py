"""``torchloom evaluate`` reports and saves finished runs when it is ended early."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.evaluate.episodes import TORCHLOOM_TOML, some_events, write
from tests.waiting import until
from torchloom_core.floor.files import write_whole

pytestmark = pytest.mark.integration

WORDS = "evaluate small.tltrace --policy failure_forecast --predictor fault_history --seeds 20"


@pytest.fixture
def runs(tmp_path):
    """Where the finished runs of the evaluation are."""
    write(tmp_path / "small.tltrace", some_events())
    (tmp_path / "torchloom.toml").write_text(TORCHLOOM_TOML)
    return tmp_path / "small-evaluation" / "runs"


def started(runs, *words):
    """Start the command in a group of its own; return once two runs are on disk."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torchloom_core.cli", *WORDS.split(), *words],
        cwd=runs.parents[1],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until(lambda: process.poll() is not None or len(list(runs.glob("*.json"))) >= 2)
    return process


def end_of(process, runs):
    """Return its last message and the number of saved runs; check that none is incomplete."""
    text = process.communicate(timeout=DEADLINE_S)[1]
    assert os.listdir(runs.parent) == ["runs"]
    assert not list(runs.glob(".*"))
    return text, len(os.listdir(runs))


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)],
    ids=["keyboard", "Slurm", "closed terminal"],
)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupt_saves_finished_runs_and_reports_how_to_continue(runs, number, status, jobs):
    """With several processes all of them get the signal, as from a terminal or Slurm."""
    process = started(runs, "--jobs", jobs)
    os.killpg(process.pid, number)
    text, saved = end_of(process, runs)
    assert process.returncode == status
    assert text == (
        f"torchloom: interrupted; {saved} finished runs are saved in small-evaluation/runs: the "
        "same command continues\n"
    )


@pytest.mark.long
def test_a_killed_worker_is_one_line_with_how_to_continue(runs):
    process = started(runs, "--jobs", "2")
    children = psutil.Process(process.pid).children()
    next(child for child in children if "loky.backend.popen" in " ".join(child.cmdline())).kill()
    text, saved = end_of(process, runs)
    assert process.returncode == 9
    assert text == (
        f"torchloom: a worker process died: killed, or out of memory; {saved} finished runs are "
        "saved in small-evaluation/runs: the same command continues; fewer --jobs need less "
        "memory\n"
    )


@pytest.mark.long
def test_no_worker_outlives_an_evaluation_that_is_killed(runs):
    process = started(runs, "--jobs", "2")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    _, left = psutil.wait_procs(children, 10 + DEADLINE_S / 10)
    for child in left:
        child.kill()
    assert left == []


def test_a_file_that_was_being_written_is_not_left_behind(tmp_path, monkeypatch):
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "report.json", b"{}")
    assert os.listdir(tmp_path) == []
