"""Two ranks under a real torchrun, attached to the Weaver of a test's run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.integration.conftest import until

TRAINER = Path(__file__).parents[1] / "threadlet" / "torchrun_trainer.py"


class Job:
    """Two ranks under one torchrun, each start with a folder and a log of its own."""

    def __init__(self, run, name, *arguments, restarts=1):
        self._run = run
        self.folder = run.folder / name
        self.folder.mkdir()
        own = {"TORCHLOOM_JOIN": str(run.state / "join.json"), "OMP_NUM_THREADS": "1"}
        own |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "--max-restarts", str(restarts), str(TRAINER)]
        command += ["--saves-nothing", "--journal", str(self.folder), *arguments]
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
        until(lambda: self._states() == ["training", "training"])

    def _states(self):
        rows = [self._run.worker(f"g0-{rank}") for rank in (0, 1)]
        return [row and row["state"] for row in rows]

    def kill_a_rank(self):
        ranks = [
            c for c in psutil.Process(self.process.pid).children() if "--journal" in c.cmdline()
        ]
        ranks[-1].kill()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
