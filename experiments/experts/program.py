"""Four workers of a program with experts and their rendezvous, of which one worker is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from experiments.experts.arms import Arm
from experiments.experts.driver import PATIENCE_S, WORKERS, Kill, started
from experiments.experts.task import EXPERTS, HIDDEN, PLAIN, WIDTH, Task, new_expert
from torchloom_core.wire.generations import Look, Outlook
from torchloom_threadlet.experts import MoELayer
from torchloom_threadlet.pipeline import attach


class Mixture(nn.Module):
    """Adds the experts' outputs to their inputs."""

    def __init__(self, arm: Arm, seed: int) -> None:
        super().__init__()
        self.experts = MoELayer(
            HIDDEN,
            lambda: new_expert(PLAIN.ffn),
            optimizer,
            num_moe_experts=EXPERTS,
            seed=seed,
            copies=arm.copies,
            mirror_every=arm.mirror_every,
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the sum, ``(tokens, HIDDEN)``."""
        output: Tensor = hidden + self.experts(hidden)
        return output


def optimizer(weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a layer or an expert."""
    return torch.optim.Adam(weights, lr=PLAIN.learning_rate)


def main(connection: Connection, name: str, address: str, arm: Arm, seed: int, steps: int) -> None:
    """Train; send each commit, and at the end how often a batch was computed again."""
    torch.set_num_threads(1)
    task, computed = Task(seed, PLAIN), Counter[tuple[int, int]]()
    pipeline = attach(
        layers=[
            lambda: nn.Linear(WIDTH, HIDDEN),
            lambda: Mixture(arm, seed),
            lambda: nn.Linear(HIDDEN, WIDTH),
        ],
        loss=nn.functional.mse_loss,
        optimizer=optimizer,
        replicas=len(WORKERS),
        seed=seed,
        rendezvous=address,
        worker=name,
    )

    def batch(replica: int) -> tuple[Tensor, Tensor]:
        computed[pipeline.steps, replica] += 1
        made = task.batch(pipeline.steps, replica)
        return made.inputs, made.targets

    with pipeline:
        while pipeline.steps < steps:
            pipeline.step(batch)
            connection.send((pipeline.steps - 1, time.monotonic()))
    again = max((count - 1 for (step, _), count in computed.items() if step), default=0)
    connection.send(again)


class Run:
    """One run with one death.

    Attributes
    ----------
    commits : dict of str to dict of int to float
        By worker and step, when it was committed, of ``time.monotonic``.
    failed_steps : int
        The most attempts of a worker at a step after the first that were computed again.
    experts_left : int
        In the generation after the death.
    """

    def __init__(self, arm: Arm, seed: int, steps: int, kill: Kill) -> None:
        self.commits: dict[str, dict[int, float]] = {name: {} for name in WORKERS}
        self.killed_s, self.failed_steps, self.experts_left = 0.0, 0, 0
        self._kill, self._kill_at_s = kill, float("inf")
        command = [sys.executable, "-m", "torchloom_core.cli", "rendezvous", "--bind=127.0.0.1:0"]
        with subprocess.Popen(
            [*command, f"--workers={len(WORKERS)}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as rendezvous:
            assert rendezvous.stdout is not None
            address = rendezvous.stdout.readline().split()[-1]
            try:
                self._train(address, (arm, seed, steps))
            finally:
                rendezvous.terminate()

    def stall_s(self) -> float:
        """Return the longest time from a worker's last commit before the death to its next."""
        return max(
            min(at for at in commits.values() if at > self.killed_s)
            - max(at for at in commits.values() if at < self.killed_s)
            for name, commits in self.commits.items()
            if name != self._kill.victim
        )

    def _train(self, address: str, options: tuple[Arm, int, int]) -> None:
        context, processes = started(), {}
        connections: dict[str, Connection] = {}
        for name in WORKERS:
            connections[name], theirs = context.Pipe()
            processes[name] = context.Process(target=main, args=(theirs, name, address, *options))
            processes[name].start()
            theirs.close()
        end_s = time.monotonic() + PATIENCE_S
        try:
            while connections:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"need an end of the run, was none after {PATIENCE_S:g} s")
                left_s = max(min(self._kill_at_s - time.monotonic(), 1.0), 0.0)
                for connection in wait(list(connections.values()), left_s):
                    name = next(n for n, c in connections.items() if c is connection)
                    self._receive(name, connections)
                if self.killed_s and not self.experts_left:
                    self._look(address)
                if time.monotonic() >= self._kill_at_s:
                    self.killed_s, self._kill_at_s = time.monotonic(), float("inf")
                    os.kill(processes[self._kill.victim].pid, signal.SIGKILL)
        finally:
            for process in processes.values():
                process.kill()
                process.join()

    def _receive(self, name: str, connections: dict[str, Connection]) -> None:
        try:
            message: Any = connections[name].recv()
        except (EOFError, OSError):
            del connections[name]
            return
        if isinstance(message, int):
            self.failed_steps = max(self.failed_steps, message)
            return
        step, at_s = message
        commits = self.commits[name]
        commits[step] = at_s
        if (name, step) == (self._kill.victim, self._kill.step):
            self._kill_at_s = at_s + self._kill.part * (at_s - commits[step - 1])

    def _look(self, address: str) -> None:
        """Count the experts that are left, once the next generation has begun."""
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as opened:
            opened.sendall(msgspec.json.encode(Look()) + b"\n")
            seen = msgspec.json.decode(opened.makefile("rb").readline(), type=Outlook)
        if seen.assignment is not None and seen.assignment.generation > 1:
            self.experts_left = sum(map(bool, seen.assignment.experts))
