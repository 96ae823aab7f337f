"""The processes of the example: a Weaver, the queue, rollout workers and a trainer."""

import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.live.transport.ports import lasting_port

_DEADLINE_S, _POLL_S = 120.0, 0.05
_CONFIG = """[weaver]
state_dir = "state"
show = ["queue_depth", "queue_wait_s", "weights_version"]
[roles.rollout]
min_groups = 0
"""


class Line(msgspec.Struct):
    """A step in the trainer's log: when it ended, seconds since the epoch."""

    t: float
    step: int
    reward: float


class Play:
    """All processes, in a folder; rollout workers that end are started again at once.

    Rollout workers are forked from a server that has imported what they need, as a launcher with
    warm processes does: the import alone would take seconds.
    """

    def __init__(self, folder: Path, rollouts: int, seed: int) -> None:
        self.folder, self._seed = folder, seed
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "torchloom.toml").write_text(_CONFIG)
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                (str(Path(__file__).parents[2]), *filter(None, sys.path))
            ),
            "OMP_NUM_THREADS": "1",
            "TORCHLOOM_JOIN": str(folder / "state" / "join.json"),
            "TORCHLOOM_ROLLOUT_QUEUE": f"127.0.0.1:{lasting_port('127.0.0.1')}",
            "TRL_EXPERIMENTAL_SILENCE": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore::FutureWarning",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._fork = multiprocessing.get_context("forkserver")
        self._fork.set_forkserver_preload(["experiments.rlhf.rollout"])
        self._ended = threading.Event()
        self._count = 0
        self.log = folder / "steps.jsonl"
        self._weaver()
        self._queue()
        self._rollouts = [self._start_rollout(str(group)) for group in range(rollouts)]
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def train(self, steps: int, *options: str) -> subprocess.Popen[bytes]:
        """Start the trainer."""
        words = ("--seed", str(self._seed), "--steps", str(steps), "--log", str(self.log))
        return self._start("trainer", "experiments.rlhf.trainer", *words, *options)

    def kill(self, chance: random.Random) -> bool:
        """Kill a rollout worker that runs; False if none does."""
        running = [process for process in self._rollouts if process.is_alive()]
        if running:
            chance.choice(running).kill()
        return bool(running)

    def lines(self) -> list[Line]:
        """Return the trainer's steps so far."""
        if not self.log.exists():
            return []
        lines = self.log.read_bytes().split(b"\n")[:-1]
        return [msgspec.json.decode(line, type=Line) for line in lines]

    def command(self, *words: str) -> str:
        """Return what ``torchloom`` prints for a command."""
        done = subprocess.run(
            [sys.executable, "-m", "torchloom_core.cli", *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    def end(self) -> None:
        """End all processes, the Weaver last."""
        self._ended.set()
        self._keeper.join()
        for rollout in self._rollouts:
            rollout.kill()
            rollout.join()
        for process in reversed(self._processes.values()):
            process.terminate()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> "Play":
        return self

    def __exit__(self, *_: Any) -> None:
        self.end()

    def _weaver(self) -> None:
        self._start("weaver", "torchloom_core.cli", "weaver")
        until((self.folder / "state" / "join.json").exists)

    def _queue(self) -> None:
        bind = self._environment["TORCHLOOM_ROLLOUT_QUEUE"]
        self._start(
            "queue", "torchloom_core.cli", "rollout-queue", "--bind", bind, "--max-batches", "8"
        )

    def _start_rollout(self, group: str) -> Any:
        self._count += 1
        log = self.folder / f"rollout-{group}.log"
        own = self._environment | {"TORCHLOOM_GROUP": group}
        args = (self._seed * 1000 + self._count, own, log)
        process = self._fork.Process(target=_roll_out, args=args, name=group)
        process.start()
        return process

    def _start(self, name: str, module: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=self.folder,
                env=self._environment | {"TORCHLOOM_GROUP": name},
                stdout=log,
                stderr=log,
            )
        return process

    def _keep(self) -> None:
        while not self._ended.wait(_POLL_S):
            for at, process in enumerate(self._rollouts):
                if not process.is_alive():
                    process.join()
                    self._rollouts[at] = self._start_rollout(process.name)


def _roll_out(seed: int, environment: Mapping[str, str], log: Path) -> None:
    """Be a rollout worker, in a process of its own."""
    os.environ.update(environment)
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(number, stream)
    import_module("experiments.rlhf.rollout").work(seed)


def until(what: Callable[[], Any]) -> Any:
    """Return what is true at last; TimeoutError after two minutes."""
    end_s = time.monotonic() + _DEADLINE_S
    while not (found := what()):
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(_POLL_S)
    return found
