"""A job that is started anew under torchrun does not train at yesterday's learning rate."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import until

pytestmark = [pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parents[1] / "threadlet" / "torchrun_trainer.py"
CONFIG = "[weaver]\nstate_dir = 'state'"


class Job:
    """Two ranks under one torchrun, each start with a folder and a log of its own."""

    def __init__(self, run, name):
        self.folder = run.folder / name
        self.folder.mkdir()
        own = {"TORCHLOOM_JOIN": str(run.state / "join.json"), "OMP_NUM_THREADS": "1"}
        own |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", "1", str(TRAINER)]
        command += ["--saves-nothing", "--journal", str(self.folder)]
        with (self.folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | own, stdout=log, stderr=log, cwd=run.folder
            )

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def rates(self, rank):
        path = self.folder / f"{rank}.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["lr"] for line in lines if '"lr"' in line]

    def trains_at(self, rate, steps=20):
        """Wait until both ranks have made their last so many steps at this rate."""

        def is_so():
            assert self.process.poll() is None, self.log
            last = [self.rates(rank)[-steps:] for rank in (0, 1)]
            return all(len(rates) == steps and set(rates) == {rate} for rates in last)

        until(is_so)

    def kill_a_rank(self):
        ranks = [
            c for c in psutil.Process(self.process.pid).children() if "--journal" in c.cmdline()
        ]
        ranks[-1].kill()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def test_a_new_job_asks_for_what_was_set_in_the_last_one_and_a_restart_inherits(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    first = Job(run, "first")
    first.trains_at(0.001)
    assert run.torchloom("knob", "set", "lr", "0.005").returncode == 0
    first.trains_at(0.005)
    first.end()

    second = Job(run, "second")
    second.trains_at(0.001, steps=60)
    assert set(second.rates(0)) == set(second.rates(1)) == {0.001}
    told = "set in an earlier job: lr = 0.005"
    assert told in second.log
    assert told in run.weaver.errors.read_text()
    assert "lr = 0.005" in run.torchloom("status").stdout
    (waiting,) = run.ask("status")["knobs_waiting"]
    assert (waiting["knob"], waiting["value"]) == ("lr", 0.005)

    taken = run.torchloom("knob", "take")
    assert "done: lr = 0.005 on 2 workers" in taken.stdout, taken.stderr
    second.trains_at(0.005)
    assert run.ask("status")["knobs_waiting"] == []

    second.kill_a_rank()
    until(lambda: "restored after the restart: lr = 0.005" in second.log)
    assert "restored after the restart: lr = 0.005" in run.weaver.errors.read_text()
    second.trains_at(0.005)
    second.end()
