"""A run that was killed goes on from its checkpoint, to the bit as if nothing had happened."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from torchloom_core.checkpoints.storage import LocalFolder
from torchloom_core.checkpoints.stored import complete_folders

pytestmark = pytest.mark.integration
TRAINER = str(Path(__file__).with_name("trainer.py"))
DEADLINE_S = 60.0


class Job:
    """Runs the trainer in a folder, by torchrun if it has several ranks."""

    def __init__(self, folder, ranks=1, wrap="none"):
        self.folder, self.ranks, self.wrap = folder, ranks, wrap
        self.place = folder / "checkpoints"

    def start(self, *options, place=None, journal="journal", ranks=0):
        ranks = ranks or self.ranks
        run = [sys.executable]
        if self.wrap != "none":
            run += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        words = [str(place or self.place), str(self.folder / journal), "--wrap", self.wrap]
        with (self.folder / "errors").open("a") as errors:
            return subprocess.Popen(
                [*run, TRAINER, *words, *options],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                cwd=self.folder,
                stderr=errors,
            )

    def finish(self, *options, **places):
        process = self.start(*options, **places)
        assert process.wait(DEADLINE_S) == 0, self.errors()

    def journal(self, name="journal", rank=0):
        path = self.folder / f"{name}.{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def errors(self):
        return (self.folder / "errors").read_text()

    def until(self, condition):
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, self.errors()
            time.sleep(0.02)

    def complete(self):
        return complete_folders(LocalFolder(self.place))


def kill_tree(process):
    for child in [*psutil.Process(process.pid).children(recursive=True), process]:
        child.kill()
    process.wait()


def steps(lines):
    return {int(line.split()[1]): line.split()[2] for line in lines if line.startswith("step")}


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "wrap"), [(1, "none"), (2, "ddp"), (2, "fsdp")])
def test_a_killed_run_goes_on_to_the_bit(tmp_path, ranks, wrap):
    job = Job(tmp_path, ranks, wrap)
    job.finish(place=tmp_path / "other", journal="undisturbed")
    process = job.start("--every-s", "0.2", "--step-s", "0.05")
    job.until(job.complete)
    kill_tree(process)
    job.finish()
    for rank in range(ranks):
        expected, found = job.journal("undisturbed", rank), job.journal(rank=rank)
        assert int(found[[line[:5] for line in found].index("begin", 1)].split()[1]) >= 0
        assert steps(found) == steps(expected)
        assert found[-1] == expected[-1]
    assert "Traceback" not in job.errors()


@pytest.mark.long
def test_another_number_of_ranks_loads_what_fsdp_has_saved(tmp_path):
    job = Job(tmp_path, 2, "fsdp")
    process = job.start("--every-s", "0.2", "--step-s", "0.05")
    job.until(job.complete)
    kill_tree(process)
    [newest, *_] = job.complete()
    job.finish("--steps", str(newest.step + 2), ranks=1)
    assert f"begin {newest.step}" in job.journal()
    assert job.journal()[-1].startswith("end ")


@pytest.mark.long
def test_sigterm_saves_and_leaves(tmp_path):
    job = Job(tmp_path)
    process = job.start("--step-s", "0.05")
    job.until(lambda: len(job.journal()) > 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0, job.errors()
    last = max(steps(job.journal()))
    job.until(job.complete)
    assert [folder.step for folder in job.complete()] == [last]
    assert job.journal()[-1] == "left"
    job.finish()
    assert f"begin {last}" in job.journal()


@pytest.mark.long
def test_another_saver_at_the_same_place_costs_a_line_and_no_step(tmp_path):
    job = Job(tmp_path)
    job.place.mkdir()
    other = LocalFolder(job.place)
    assert other.lock(f"pid {os.getpid()} on {socket.gethostname()}") == ""
    process = job.start("--every-s", "0.1", "--step-s", "0.02", "--steps", "1000")
    job.until(lambda: "is not saved: CheckpointError: " in job.errors())
    before = len(job.journal())
    job.until(lambda: len(job.journal()) > before + 3)
    assert not job.complete()
    other.unlock()
    job.until(job.complete)
    kill_tree(process)


@pytest.mark.long
def test_a_job_that_torchrun_is_asked_to_end_goes_on_at_its_next_start(tmp_path):
    job = Job(tmp_path, 2, "ddp")
    job.finish(place=tmp_path / "other", journal="undisturbed")
    process = job.start("--step-s", "0.05")
    job.until(lambda: len(job.journal()) > 3)
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)  # its status is that of the signal
    assert [job.journal(rank=rank)[-1] for rank in range(2)] == ["left", "left"]
    job.finish()
    assert f"begin {job.complete()[0].step}" in job.journal()
    for rank in range(2):
        assert steps(job.journal(rank=rank)) == steps(job.journal("undisturbed", rank))
