"""Ranks of real torchft in one process, each in a thread, which make a step in four calls."""

import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

os.environ.setdefault("RUST_LOG", "error")
torch = pytest.importorskip("torch")
pytest.importorskip("torchft")

from torch.distributed import TCPStore  # noqa: E402
from torchft import Manager, ProcessGroupGloo  # noqa: E402
from torchft.checkpointing.http_transport import HTTPTransport  # noqa: E402
from torchft.coordination import LighthouseServer  # noqa: E402

from tests.waiting import until  # noqa: E402
from torchloom_core.wire.commands import Ack, Command  # noqa: E402
from torchloom_threadlet.torchft import attach  # noqa: E402

LONG = timedelta(seconds=60)
BROKEN = timedelta(seconds=2)
"""The timeout of a collective that a peer never joins."""
OLD, NEW = 4, 8


class Rank:
    """A replica group of one rank with a run-fenced knob, and weights that show its past."""

    def __init__(self, name, lighthouse, use_async_quorum):
        self.thread = ThreadPoolExecutor(1)
        self.width = 1  # the script's default; the run has another value
        self.refuses = set()
        self.is_unreadable = False
        self.set_at = []
        self.used = {}
        self.weights = torch.zeros(1)
        self.acks = []
        self.store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.loom = attach(group=name)
        self.worker = self.loom._worker
        self.worker.send = self.acks.append
        self.transport = HTTPTransport(timeout=LONG, num_chunks=0)
        self.manager = Manager(
            pg=self.process_group(),
            load_state_dict=self._load,
            state_dict=lambda: {"weights": self.weights.clone()},
            min_replica_size=1,
            use_async_quorum=use_async_quorum,
            init_sync=not use_async_quorum,
            timeout=LONG,
            quorum_timeout=LONG,
            replica_id=name,
            rank=0,
            world_size=1,
            store_addr="localhost",
            store_port=self.store.port,
            lighthouse_addr=lighthouse,
            hostname="localhost",
            checkpoint_transport=self.transport,
        )
        self.loom.manage(self.manager)
        self.loom.knob("width", self._get, self._set, kind="int", low=1, high=99, fence="run")
        self.alive = True

    def process_group(self):
        return ProcessGroupGloo(timeout=BROKEN)

    def _get(self):
        if self.is_unreadable:
            raise RuntimeError("not now")
        return self.width

    def _set(self, value):
        if value in self.refuses:
            raise MemoryError(f"no room for {value}")
        self.width = value
        self.set_at.append((value, self.step))

    def _load(self, state):
        self.weights = state["weights"].clone()

    @property
    def step(self):
        return self.manager.current_step()

    @property
    def connected(self):
        """The size of its quorum, with itself; 0 if it has not connected to the others."""
        pg = self.manager._pg
        return pg.size() if pg._pg else 0

    def receive(self, operation, number=1):
        self.worker.deliver(
            Command(
                id=f"c{number}.{type(operation).__name__}",
                run="run",
                worker=self.loom.worker,
                incarnation=self.worker.identity.incarnation,
                epoch=1,
                issued_ns=time.time_ns(),
                deadline_ns=time.time_ns() + 60_000_000_000,
                do=operation,
                cause=f"p{number}",
            )
        )

    def ends(self):
        final = ("applied", "failed", "rejected")
        acks = [ack for ack in self.acks if isinstance(ack, Ack) and ack.status in final]
        return [(ack.status, ack.step) for ack in acks if ack.command.endswith("FencedChange")]

    def begin(self):
        self.manager.start_quorum()
        self.manager._quorum_future.result()

    def reduce(self):
        self.gradient = torch.tensor(
            [1.0 + (self.manager.participating_rank() or 0), float(self.width)]
        )
        self.manager.allreduce(self.gradient).wait()

    def commit(self):
        self.committed = self.manager.should_commit()
        if self.committed:
            self.used[self.step] = self.width
            assert self.gradient[1] == self.width, "a peer has reduced with another value"
            self.weights = self.weights + self.gradient[0]
        return self.committed

    def end(self):
        self.loom.step()

    def die(self):
        """End like a killed process: silently, with all connections closed."""
        if self.alive:
            self.alive = False
            self.manager.shutdown(wait=False)
            self.manager._pg.abort()
            self.transport._server.server_close()


class Run:
    rank = Rank

    def __init__(self):
        torch.set_num_threads(1)
        self.lighthouse = LighthouseServer(
            bind="[::]:0",
            min_replicas=1,
            join_timeout_ms=3000,
            quorum_tick_ms=20,
            heartbeat_timeout_ms=800,
        )
        self.ranks = []
        self.use_async_quorum = False

    def add(self, name):
        self.ranks.append(self.rank(name, self.lighthouse.address(), self.use_async_quorum))
        return self.ranks[-1]

    def all(self, what, *ranks):
        """Make one call on all of them, each in its own thread."""
        futures = [rank.thread.submit(getattr(rank, what)) for rank in ranks]
        return [future.result(120) for future in futures]

    def whole(self, *ranks):
        """Make a step on all of them, and return whether all commit it."""
        self.all("begin", *ranks)
        return self.rest(*ranks)

    def rest(self, *ranks):
        self.all("reduce", *ranks)
        committed = all(self.all("commit", *ranks))
        self.all("end", *ranks)
        return committed

    def until_committed(self, *ranks):
        """Make steps until all commit one."""
        until(lambda: self.whole(*ranks))

    def together(self, *ranks):
        """Begin a step in one quorum, whatever the last quorum; the last rank was in it."""
        while True:
            *first, last = ranks
            futures = self.waiting(first)
            if not futures:  # busy cores: they gave up waiting for the last of them,
                self.rest(*first)  # and would not wait for it again
                ranks = (last, *first)
                continue
            joining = last.thread.submit(last.begin)
            for future in futures:
                future.result(120)
            while any(0 < rank.connected < len(ranks) for rank in first):
                self.rest(*first)  # or gave up just before its request: it waits
                self.all("begin", *first)
            joining.result(120)
            if all(rank.connected for rank in ranks):
                break
            self.rest(*ranks)  # or did not connect in time
        assert {rank.connected for rank in ranks} == {len(ranks)}

    def waiting(self, ranks):
        """Let ranks request a quorum; return their requests if they wait for one more rank."""
        futures = [rank.thread.submit(rank.begin) for rank in ranks]
        until(lambda: self.is_waiting(len(ranks)) or all(future.done() for future in futures))
        return [] if all(future.done() for future in futures) else futures

    def is_waiting(self, count):
        """Return whether so many wait for a quorum that is not formed yet."""
        with urllib.request.urlopen(f"{self.lighthouse.address()}/status", timeout=5) as page:
            return f"[{count}/{count} participants healthy]" in page.read().decode()

    def close(self):
        for rank in self.ranks:
            rank.die()
            rank.loom.close()
            rank.thread.shutdown(wait=False)
        self.lighthouse.shutdown()
