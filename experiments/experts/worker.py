"""One worker: it trains its replicas and holds its experts, through any number of generations."""

import contextlib
import json
import os
import queue
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from experiments.experts.task import PLAIN, Model, Setting, Task
from torchloom_core.wire.assignment import Assignment, Copy
from torchloom_threadlet.experts.peers import Peers
from torchloom_threadlet.experts.reduction import reduce_dense
from torchloom_threadlet.pipeline.group import Group

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Options:
    """What all workers of a run do.

    Attributes
    ----------
    pause_at : int
        Stop after this step for a new assignment; -1 for never.
    end_at : tuple of str and int
        This worker kills itself in this step, between forward and backward pass.
    mirror_every : int
        Steps between two copies of an expert in a peer's memory; 0 for none.
    measured_at : tuple of int
        Steps after which the loss on held-out data is measured.
    """

    seed: int
    steps: int
    setting: Setting = PLAIN
    pause_at: int = -1
    end_at: tuple[str, int] = ("", -1)
    mirror_every: int = 0
    measured_at: tuple[int, ...] = ()


class Link(threading.Thread):
    """The connection to the rendezvous, which tells this worker to leave a generation."""

    def __init__(self, connection: Connection, group: Group) -> None:
        super().__init__(daemon=True)
        self._connection, self._group = connection, group
        self.begins: queue.Queue[dict[str, Any]] = queue.Queue()

    def run(self) -> None:
        """Receive until the rendezvous ends, and then end this process."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = json.loads(self._connection.recv_bytes())
                if "stop" in message:
                    self._group.end(message["stop"])
                else:
                    self.begins.put(message)
        os._exit(1)

    def send(self, **message: Any) -> None:
        """Send a message."""
        self._connection.send_bytes(json.dumps(message).encode())


class Worker:
    """The training loop."""

    def __init__(self, name: str, port: int, link: Link, members: Group, options: Options) -> None:
        self._name, self._link, self._options = name, link, options
        self._members, self._store = members, f"{HOST}:{port}"
        self._task = Task(options.seed, options.setting)
        self._held_out = self._task.held_out()
        self._model = Model(options.seed, options.setting, options.mirror_every)
        self._dense = list(self._model.parameters())
        self._committed = self._reduced = -1
        self.record: dict[str, Any] = {
            "attempts": 0,
            "commits": [],
            "errors": [],
            "losses": {},
            "tokens": [],
            "mirror_s": [],
        }

    @property
    def has_finished(self) -> bool:
        """Whether all steps are committed."""
        return self._committed == self._options.steps - 1

    def begin(self, message: dict[str, Any]) -> None:
        """Roll forward, form the group, get missing experts, and take part."""
        experts = self._model.experts
        assignment = msgspec.convert(message["assignment"], Assignment)
        if message["committed"] > self._committed and self._reduced > self._committed:
            self._commit(self._reduced)
        self._forget()
        workers = assignment.workers
        if assignment.generation > 1:
            experts.leave()
            self._members.leave()
        self._members.form(assignment.generation, self._store, workers, self._name)
        peers = Peers(dist.group.WORLD, self._members.wait)
        copies = [Copy(*copy) for copy in message["copies"]]
        experts.copy(copies, workers, peers)
        for number in assignment.experts_of(self._name):
            if assignment.generation == 1:
                experts.create(number)
            elif number not in experts.held():
                experts.load(number)
        experts.begin(assignment, peers)
        self._replicas = [
            number
            for number, (stage,) in enumerate(assignment.routes)
            if stage.worker == self._name
        ]
        self._all_replicas = len(assignment.routes)

    def train(self) -> None:
        """Commit steps until the last one, the pause, or an error of the group."""
        while not self.has_finished:
            step = self._committed + 1
            self._attempt(step)
            self._vote(step)
            self._commit(step)
            self._after(step)
            if step == self._options.pause_at:
                return

    def stopped(self) -> dict[str, Any]:
        """Return what this worker has."""
        experts = self._model.experts
        return {
            "committed": self._committed,
            "experts": experts.held(),
            "mirrored": list(experts.mirrored()),
            "tokens": self.record["tokens"],
        }

    def _attempt(self, step: int) -> None:
        self.record["attempts"] += 1
        batches = [self._task.batch(step, replica) for replica in self._replicas]
        inputs, targets = (torch.cat([batch[at] for batch in batches]) for at in (0, 1))
        loss = (self._model(inputs) - targets).square().mean() * len(batches)
        if self._options.end_at == (self._name, step):
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        self._model.experts.reduce()
        reduce_dense(self._dense, self._model.experts.peers, self._all_replicas)
        self._reduced = step

    def _vote(self, step: int) -> None:
        votes = self._model.experts.peers.gather(torch.tensor([step]))
        if any(int(vote) != step for vote in votes):
            raise RuntimeError(f"need votes for step {step}, were {[int(v) for v in votes]}")

    def _commit(self, step: int) -> None:
        self._model.dense_optimizer.step()
        self._model.experts.commit()
        self._committed = step
        self._forget()
        self.record["tokens"].append(self._model.experts.tokens_per_expert)
        self.record["commits"].append((step, time.monotonic()))

    def _forget(self) -> None:
        self._model.experts.forget()
        self._model.dense_optimizer.zero_grad()

    def _after(self, step: int) -> None:
        if self._options.mirror_every:
            begun_s = time.monotonic()
            self._model.experts.mirror(step)
            self.record["mirror_s"].append(time.monotonic() - begun_s)
        if step in self._options.measured_at:
            self.record["losses"][step] = self._measured()
        if step < self._options.steps - 1:
            self._link.send(step=step)

    def _measured(self) -> list[float]:
        """Return the loss on held-out data of each cluster, and of all; collective."""
        peers = self._model.experts.peers
        rank, size = peers.rank, peers.size
        inputs, targets, clusters = (part[rank::size] for part in self._held_out)
        self._model.eval()
        with torch.no_grad():
            errors = (self._model(inputs) - targets).square().mean(dim=1)
        self._model.train()
        sums = torch.zeros(2, self._options.setting.clusters)
        sums[0].index_add_(0, clusters, errors)
        sums[1].index_add_(0, clusters, torch.ones_like(errors))
        total, count = peers.sum(sums.reshape(-1)).view_as(sums)
        return [*(total / count).tolist(), float(total.sum() / count.sum())]


def main(connection: Connection, name: str, port: int, options: Options) -> None:
    """Train until all steps are committed, and send the record."""
    torch.set_num_threads(1)
    group = Group(timeout_s=60)
    link = Link(connection, group)
    link.start()
    worker = Worker(name, port, link, group, options)
    link.send(ready=True)
    while not worker.has_finished:
        message = link.begins.get()
        try:
            worker.begin(message)
            worker.train()
        except RuntimeError:
            worker.record["errors"].append(time.monotonic())
        if not worker.has_finished:
            link.send(stopped=worker.stopped())
    link.send(record=worker.record)
    link.begins.get()  # until all have finished
