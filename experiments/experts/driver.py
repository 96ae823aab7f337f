"""Runs four workers and takes them from one assignment to the next: a small rendezvous."""

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec
import torch.distributed as dist

from experiments.experts.task import EXPERTS
from experiments.experts.worker import HOST, Options, main
from torchloom_core.assignments.checking import expert_copies
from torchloom_core.assignments.experts import Placed
from torchloom_core.wire.assignment import Assignment, Stage

WORKERS = ("w0", "w1", "w2", "w3")
PATIENCE_S = 120.0
PRELOADED = (
    "experiments.experts.worker",
    "torch._dynamo",  # an optimizer loads it
    "experiments.experts.figures",  # each process loads the command's module
    "matplotlib.figure",
    "rich.progress",
    "rich.table",
)
Reports = dict[str, dict[str, Any]]
Decide = Callable[[Assignment, Reports, set[str]], Placed]
"""Returns the experts' next holders, from what the workers that are left have."""


@dataclass
class Outcome:
    """What a run did.

    Attributes
    ----------
    records : dict
        What each worker that finished has recorded.
    killed_s : float
        When a worker was killed, 0 if none was; of ``time.monotonic``, as all times.
    assignments : list of Assignment
        One for each generation.
    """

    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    killed_s: float = 0.0
    assignments: list[Assignment] = field(default_factory=list)

    @property
    def first(self) -> dict[str, Any]:
        """The record of the first worker that finished."""
        return self.records[min(self.records)]

    def commit_gaps_s(self) -> list[float]:
        """Return the seconds between neighbouring commits, of the slowest worker each."""
        gaps = [
            [late - early for (_, early), (_, late) in pairwise(commits)]
            for commits in (record["commits"] for record in self.records.values())
        ]
        return [max(of_step) for of_step in zip(*gaps, strict=True)]

    def stall_s(self) -> float:
        """Return the longest time of a worker between the two commits around its error."""
        return max(
            min(at for _, at in record["commits"] if at > record["errors"][0])
            - max(at for _, at in record["commits"] if at < record["errors"][0])
            for record in self.records.values()
        )

    def noticed_s(self) -> list[float]:
        """Return how long after the kill each worker left its collective."""
        return [record["errors"][0] - self.killed_s for record in self.records.values()]

    def failed_steps(self) -> int:
        """Return the attempts that were not committed, the most of a worker."""
        return max(r["attempts"] - len(r["commits"]) for r in self.records.values())


@dataclass
class Kill:
    """``victim`` is killed with -9 after this step, and this part of the next."""

    victim: str
    step: int
    part: float


def started() -> Any:
    """Return the context that starts workers from a process that has loaded torch."""
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def spread(copies: int = 1) -> Placed:
    """Return holders of two experts a worker, and of their copies at the next workers."""
    return tuple(
        tuple(WORKERS[(expert // 2 + copy) % len(WORKERS)] for copy in range(copies))
        for expert in range(EXPERTS)
    )


def run(options: Options, holders: Placed, decide: Decide, kill: Kill | None = None) -> Outcome:
    """Run until the workers that are left have committed all steps."""
    store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    context = started()
    outcome = Outcome()
    connections: dict[str, Connection] = {}
    processes = {}
    for name in WORKERS:
        connections[name], theirs = context.Pipe()
        processes[name] = context.Process(target=main, args=(theirs, name, store.port, options))
        processes[name].start()
        theirs.close()
    try:
        Rendezvous(outcome, connections, holders, decide, kill, processes).serve()
    finally:
        for process in processes.values():
            process.kill()
            process.join()
    return outcome


class Rendezvous:
    """Sends assignments, and a new one whenever all workers that are left have stopped."""

    def __init__(
        self,
        outcome: Outcome,
        connections: dict[str, Connection],
        holders: Placed,
        decide: Decide,
        kill: Kill | None,
        processes: dict[str, Any],
    ) -> None:
        self._outcome, self._connections = outcome, connections
        self._holders, self._decide = holders, decide
        self._kill, self._processes = kill, processes
        self._kill_at_s = float("inf")
        self._last_commit_s, self._step_s = 0.0, 0.0
        self._ready: set[str] = set()
        self._stopped: Reports = {}
        self._lost: set[str] = set()

    def serve(self) -> None:
        """Serve until all workers that are left have finished."""
        end_s = time.monotonic() + PATIENCE_S
        while len(self._outcome.records) < len(self._connections):
            if time.monotonic() > end_s:
                raise TimeoutError(f"need an end of the run, was none after {PATIENCE_S:g} s")
            left_s = max(min(self._kill_at_s - time.monotonic(), 1.0), 0.0)
            for connection in wait(list(self._connections.values()), left_s):
                name = next(n for n, c in self._connections.items() if c is connection)
                self._receive(name)
            if time.monotonic() >= self._kill_at_s and self._kill is not None:
                self._outcome.killed_s = time.monotonic()
                os.kill(self._processes[self._kill.victim].pid, signal.SIGKILL)
                self._kill_at_s = float("inf")

    def _receive(self, name: str) -> None:
        try:
            message = json.loads(self._connections[name].recv_bytes())
        except (EOFError, OSError):
            if name in self._outcome.records:
                raise
            self._outcome.killed_s = self._outcome.killed_s or time.monotonic()
            del self._connections[name]
            self._lost.add(name)
            if len(self._lost) > 1:
                raise RuntimeError(f"need one worker lost, were {sorted(self._lost)}") from None
            self._stop()
        else:
            if "ready" in message:
                self._ready.add(name)
                if len(self._ready) == len(WORKERS):
                    routes = tuple((Stage(worker, 0, 1),) for worker in WORKERS)
                    self._begin(routes, self._holders, -1)
                return
            if "step" in message:
                self._plan_kill(name, message["step"])
                return
            if "record" in message:
                self._outcome.records[name] = message["record"]
            else:
                self._stopped[name] = message["stopped"]
        if self._stopped and self._stopped.keys() == self._connections.keys():
            self._go_on()

    def _plan_kill(self, name: str, step: int) -> None:
        if self._kill is None or name != self._kill.victim:
            return
        now_s = time.monotonic()
        self._step_s, self._last_commit_s = now_s - self._last_commit_s, now_s
        if step == self._kill.step:
            self._kill_at_s = now_s + self._kill.part * self._step_s

    def _stop(self) -> None:
        for connection in self._connections.values():
            connection.send_bytes(b'{"stop": %d}' % len(self._outcome.assignments))

    def _go_on(self) -> None:
        present = self._outcome.assignments[-1]
        shares = {name: 0 for name in self._connections}
        routes = []
        for route in present.routes:
            worker = route[0].worker
            if worker in self._lost:
                worker = min(shares, key=lambda name: shares[name])
            shares[worker] += 1
            routes.append((Stage(worker, 0, 1),))
        holders = self._decide(present, self._stopped, self._lost)
        committed = max(report["committed"] for report in self._stopped.values())
        self._begin(routes, holders, committed)

    def _begin(self, routes: Sequence[Any], holders: Placed, committed: int) -> None:
        assignment = Assignment(
            generation=len(self._outcome.assignments) + 1,
            layers=1,
            routes=tuple(routes),
            experts=holders,
        )
        self._outcome.assignments.append(assignment)
        held = {
            name: frozenset([*report["experts"], *report["mirrored"]])
            for name, report in self._stopped.items()
        }
        message = {
            "assignment": msgspec.to_builtins(assignment),
            "committed": committed,
            "copies": msgspec.to_builtins(expert_copies(assignment, held)) if held else (),
        }
        for connection in self._connections.values():
            connection.send_bytes(json.dumps(message).encode())
        self._stopped = {}


def random_kill(draw: random.Random, first: int, last: int) -> Kill:
    """Return a kill at a random moment of a random step."""
    return Kill(draw.choice(WORKERS), draw.randrange(first, last), draw.random())
