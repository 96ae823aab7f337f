"""Kill workers of a pipeline at random moments, and compare with the undisturbed run."""

import argparse
import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.progress import Progress

from experiments.pipeline_kills.judge import Kill, Worker, judged
from experiments.pipeline_kills.moments import IN_A_GENERATION, IN_A_STEP, NEVER, Moment, drawn
from experiments.pipeline_kills.program import LAYERS, attached, batch
from experiments.pipeline_kills.report import show, write
from experiments.pipeline_kills.trainer import main as train
from torchloom_core.cli.capability import console

WORKERS, DEADLINE_S, STEPS_BETWEEN = 6, 40.0, 4
PHASES = [*IN_A_STEP, *IN_A_GENERATION]
_POLL_S = 0.03


class Fleet:
    """A rendezvous, and workers in processes of their own."""

    def __init__(self, folder: Path, standbys: int) -> None:
        self.folder, self.standbys = folder, standbys
        self.workers: list[Worker] = []
        self._commands: dict[int, Any] = {}
        self._processes: dict[int, Any] = {}
        self._fork = multiprocessing.get_context("forkserver")
        self._fork.set_forkserver_preload(["experiments.pipeline_kills.trainer"])
        log = (folder / "rendezvous.log").open("wb")
        self._rendezvous = subprocess.Popen(
            [
                Path(sys.executable).with_name("torchloom"),
                "rendezvous",
                f"--workers={WORKERS + standbys}",
                f"--standbys={standbys}",
                "--bind=127.0.0.1:0",
                "--heartbeat-timeout-s=20",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        text = self.until(lambda: self._line("Rendezvous is ready on "))
        self.address = text.split()[-1]

    def _line(self, start: str) -> str:
        lines = (self.folder / "rendezvous.log").read_text().splitlines()
        return next((line for line in lines if line.startswith(start)), "")

    def why_lost(self) -> str:
        """Return why the rendezvous has ended the run in order, if it has."""
        lines = (self.folder / "rendezvous.log").read_text().splitlines()
        found = (line.partition("lost: ")[2] for line in lines if "lost: " in line)
        return "".join(f"stops in order: {why}" for why in list(found)[:1])

    def until(self, what: Callable[[], Any]) -> Any:
        """Return what is true at last; TimeoutError after a minute."""
        end_s = time.monotonic() + DEADLINE_S
        while not (found := what()):
            if time.monotonic() > end_s:
                raise TimeoutError
            time.sleep(_POLL_S)
        return found

    def start(self, name: str) -> None:
        """Start a worker's process."""
        number = len(self.workers)
        mine, theirs = self._fork.Pipe()
        args = (name, number, self.address, str(self.folder), theirs)
        self._processes[number] = process = self._fork.Process(target=train, args=args)
        process.start()
        theirs.close()
        self._commands[number] = mine
        self.workers.append(Worker(name, number, self.folder / f"{number}-{name}.log"))

    def alive(self) -> list[Worker]:
        """Return the workers whose process runs."""
        return [worker for worker in self.workers if self._processes[worker.process].is_alive()]

    def members(self) -> list[Worker]:
        """Return the living workers with a part in the newest generation."""
        alive = self.alive()
        newest = max((worker.generation for worker in alive), default=0)
        return [worker for worker in alive if newest and worker.generation == newest]

    def arm(self, worker: Worker, moment: Moment) -> None:
        """Have a worker end at that moment."""
        with contextlib.suppress(OSError):
            self._commands[worker.process].send(msgspec.structs.astuple(moment))

    def is_ready(self) -> bool:
        """Return whether all workers are back in their places; start those that are missing."""
        there = {worker.name for worker in self.alive()}
        for number in range(WORKERS + self.standbys):
            if (name := f"w{number}") not in there:
                self.start(name)
        members, alive = self.members(), self.alive()
        rest = [worker for worker in alive if worker not in members]
        return (
            len(members) >= WORKERS - 2
            and all(worker.is_warm for worker in rest)
            and all(worker.since_begun >= STEPS_BETWEEN for worker in members)
        )

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.join()
        self._rendezvous.terminate()
        self._rendezvous.wait()


def disturb(
    fleet: Fleet,
    count: int,
    rng: random.Random,
    at_once: int,
    phases: Sequence[str],
    shown: Any,
) -> list[Kill]:
    """Kill workers one after the other, each once all are back in their places."""
    kills = []
    for number in range(count):
        try:
            fleet.until(fleet.is_ready)
        except TimeoutError:
            break
        phase = phases[number % len(phases)]
        is_within = phase in IN_A_GENERATION
        # The first death makes a generation, in which the one that counts is the second.
        victims = drawn_victims(fleet, at_once + (is_within and at_once == 1), phase, rng)
        first, *others = victims
        for victim in others:
            fleet.arm(victim, drawn(phase, rng))
        began = rng.choice(IN_A_STEP) if is_within else phase
        fleet.arm(first, drawn(began, rng))
        generation = first.generation
        kill = Kill(phase, [victim.process for victim in victims])
        kills.append(kill)
        try:
            fleet.until(lambda first=first: first not in fleet.alive())
            begun = time.monotonic()
            fleet.until(lambda k=kill, b=begun, g=generation: _goes_on(fleet, k, b, g))
        except TimeoutError:
            kill.problem = fleet.why_lost() or "does not go on"
            break
        for victim in others:
            fleet.arm(victim, NEVER)
        alive = {worker.process for worker in fleet.alive()}
        if others and others[-1].process in alive:  # its moment has not come
            kill.phase = began
        kill.victims = [number for number in kill.victims if number not in alive]
        shown(number + 1)
    return kills


def drawn_victims(fleet: Fleet, count: int, phase: str, rng: random.Random) -> list[Worker]:
    """Return workers of which the others hold all layers; the last may be a standby."""
    while True:
        members = fleet.members()  # not all of them may have written that a generation has begun
        victims = rng.sample(members, min(count, len(members)))
        standbys = [worker for worker in fleet.alive() if worker not in members]
        if phase == "copy" and standbys:  # it is the one that gets the layers
            victims[-1] = standbys[0]
        held = [worker.layers for worker in members if worker not in victims]
        if len(set().union(*held)) == LAYERS:
            return victims


def _goes_on(fleet: Fleet, kill: Kill, begun_s: float, generation: int) -> bool:
    """Return whether the survivors have trained for some steps since, in a later generation."""
    members = [worker for worker in fleet.members() if worker.generation > generation]
    last = members and min(worker.last_commit_s for worker in members)
    armed = [number for number in kill.victims if number in {w.process for w in members}]
    if armed and last and last - begun_s > 2.0:  # the moment has not come: there was no copy
        return True
    return bool(members) and not armed and all(w.since_begun >= STEPS_BETWEEN for w in members)


def undisturbed(steps: int, shown: Callable[[int], None]) -> tuple[list[str], dict[int, Any]]:
    """Return the losses and final weights of one worker that trains alone."""
    losses = []
    with attached("alone", None) as pipeline:
        while pipeline.steps < steps:
            losses.append(repr(pipeline.step(lambda replica: batch(pipeline.steps, replica))))
            shown(pipeline.steps)
        return losses, {number: layer.weights for number, layer in pipeline.layers.items()}


def main() -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--answer", choices=("standby", "re-template"), default="standby")
    parser.add_argument("--at-once", type=int, default=1, help="deaths at once")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=PHASES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--keep", type=Path, help="folder for the logs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    rng = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as temporary, Progress(console=console()) as progress:
        folder = asked.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fleet = Fleet(folder, int(asked.answer == "standby"))
        try:
            task = progress.add_task("kills", total=asked.kills)
            kills = disturb(
                fleet,
                asked.kills,
                rng,
                asked.at_once,
                asked.phases,
                lambda done: progress.update(task, completed=done),
            )
            end = max(worker.steps for worker in fleet.workers) + 30
            (folder / "end.part").write_text(str(end))
            (folder / "end.part").rename(folder / "end")
            try:
                fleet.until(lambda: not fleet.members())
            except TimeoutError:
                kills[-1].problem = kills[-1].problem or "does not end"
        finally:
            fleet.close()
        task = progress.add_task("undisturbed run", total=end)
        losses, weights = undisturbed(end, lambda done: progress.update(task, completed=done))
        result = judged(fleet.workers, kills, losses, weights, folder)
    name = f"{asked.answer}{'' if asked.at_once == 1 else f'-{asked.at_once}-at-once'}"
    if asked.phases != PHASES:
        name += "-" + "-".join(asked.phases)
    write(result, asked.out / f"{name}.json", vars(asked))
    show(result)


if __name__ == "__main__":
    main()
