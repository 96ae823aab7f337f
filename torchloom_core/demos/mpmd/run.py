"""One run: a rendezvous and workers, of which some are killed; what the others do."""

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from torchloom_core.demos.mpmd.script import Kill, Part
from torchloom_core.demos.processes import Processes, kill_tree
from torchloom_core.demos.steplog import StepLog
from torchloom_core.floor.errors import StateError

_WAIT_S = 90.0
_LOOK_S = 0.05
_READY = re.compile(r"Rendezvous is ready on (\S+)")
_BEGUN = re.compile(r"generation \d+: (.*); (\d+) workers, (\d+) standbys, after step -?\d+")
_RELATED_S = 1.0
"""How long after a death the stall may begin: the dead one may have voted for a step."""


@dataclass(frozen=True)
class Loss:
    """A worker was killed ``at`` a time, s since the epoch, and the others went on.

    Attributes
    ----------
    answer : str
        The rendezvous' reason for the assignment that followed.
    workers : int
        How many have a part in it.
    stall_s : float
        From a survivor's last step before to its first one after, the longest of all.
    """

    worker: str
    step: int
    at: float
    answer: str
    workers: int
    stall_s: float


class Run:
    """A part of the demo in a folder.

    Attributes
    ----------
    losses : list of Loss
        The kills so far.
    undisturbed : StepLog
        The steps of the undisturbed run.
    """

    def __init__(self, part: Part, folder: Path) -> None:
        self.part = part
        self.processes = Processes(folder, part)
        self.logs = self.processes.logs
        self.undisturbed = StepLog(folder / "undisturbed.jsonl")
        self.losses: list[Loss] = []
        self._killed: set[str] = set()
        self._show: Callable[[], None] = lambda: None

    @property
    def survivors(self) -> list[StepLog]:
        """The logs of the workers that were not killed."""
        return [log for name, log in self.logs.items() if name not in self._killed]

    def play(self, show: Callable[[], None]) -> None:
        """Run to the end; ``show`` is called several times a second."""
        self._show = show
        with self._all_ended():
            address = self._rendezvous()
            for name in self.part.workers:
                self._start(name, {"TORCHLOOM_RENDEZVOUS": address, "TORCHLOOM_WORKER": name})
            for kill in self.part.kills:
                self._suffer(kill)
            self._until(self._has_ended, "the workers have ended")
            self._check()

    def play_undisturbed(self, show: Callable[[], None]) -> None:
        """Train the same steps in one process."""
        self._show = show
        with self._all_ended():
            self._start("undisturbed", {})
            process = self.processes.trainers["undisturbed"]
            self._until(lambda: process.poll() is not None, "the undisturbed run has ended")
            self._check()
        self.undisturbed.read()

    @contextmanager
    def _all_ended(self) -> Iterator[None]:
        try:
            yield
        finally:
            for process in self.processes.trainers.values():
                kill_tree(process)
            self.processes.trainers.clear()

    def _rendezvous(self) -> str:
        """Start the rendezvous, and return its address."""
        words = [f"--workers={len(self.part.places)}", f"--standbys={self.part.standbys}"]
        command = self.processes.command("rendezvous", "--bind=127.0.0.1:0", *words)
        self.processes.trainers["rendezvous"] = self.processes.spawn("rendezvous", command, {})
        self._until(lambda: _READY.search(self._log()), "the rendezvous is ready")
        found = _READY.search(self._log())
        return found[1] if found else ""

    def _log(self) -> str:
        return (self.processes.folder / "rendezvous.err").read_text(encoding="utf-8")

    def _start(self, name: str, environment: Mapping[str, str]) -> None:
        part, path = self.part, self.processes.folder / f"{name}.jsonl"
        command = [sys.executable, "-m", "torchloom_threadlet.demo_mpmd", *part.options]
        command += [f"--steps={part.steps}", f"--seed={part.seed}", f"--log={path}"]
        if environment:
            command.append(f"--step-ms={part.step_ms}")
        own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
        self.processes.trainers[name] = self.processes.spawn(name, command, own)

    def _suffer(self, kill: Kill) -> None:
        """Kill a worker, and wait until the others train again."""
        self._until(lambda: self._step() >= kill.step, f"step {kill.step}")
        known, step = len(_BEGUN.findall(self._log())), self._step()
        kill_tree(self.processes.trainers[kill.worker])
        at = time.time()
        self._killed.add(kill.worker)
        self._until(lambda: self._step() >= step + 5, f"steps after the death of {kill.worker}")
        answer, workers, _ = _BEGUN.findall(self._log())[known]
        stall_s = max(_stall_s(log, at) for log in self.survivors)
        self.losses.append(Loss(kill.worker, step, at, answer, int(workers), stall_s))

    def _step(self) -> int:
        return max((log.step for log in self.survivors), default=-1)

    def _has_ended(self) -> bool:
        trainers = self.processes.trainers
        lasting = (name for name in self.part.workers if name not in self._killed)
        return all(trainers[name].poll() is not None for name in lasting)

    def _check(self) -> None:
        for name in self.processes.trainers:
            if name not in self._killed:
                self.processes.check(name)

    def _until(self, holds: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not holds():
            self.processes.read_logs()
            self._check()
            self._show()
            if time.monotonic() > deadline:
                folder = self.processes.folder
                raise StateError(f"after {_WAIT_S:g} s still waiting for: {what}; see {folder}")
            time.sleep(_LOOK_S)
        self.processes.read_logs()


def _stall_s(log: StepLog, at: float) -> float:
    times = [row["t"] for row in log.steps]
    gaps = (b - a for a, b in pairwise(times) if b > at and a < at + _RELATED_S)
    return max(gaps, default=0.0)
