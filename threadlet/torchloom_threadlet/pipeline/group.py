"""The gloo group of a generation, and how another thread ends whatever waits in it."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from torchloom_threadlet.gloo_sockets import gloo_connections, shut, sockets
from torchloom_threadlet.pipeline.interruptible import Interruptible

_ANSWER = timedelta(seconds=5)
"""How long a member's store may take to answer."""

_FIRST_ATTEMPT = timedelta(seconds=0.2)
_LOOK_S = 0.005
_READ_S = 0.2
"""How long a member waits until others have read; who has not by then has ended."""

_BACKEND = "torchloom_gloo"
"""gloo that is connected already: while torch connects it, nothing can end its wait for a peer."""

dist.Backend.register_backend(
    _BACKEND, lambda _, connected: connected, extended_api=True, devices=["cpu", "cuda"]
)


class _Connected(NamedTuple):
    store: Store
    gloo: dist.ProcessGroupGloo


class Group:
    """torch's default group, formed anew for each generation.

    Parameters
    ----------
    timeout_s : float
        Of one receive, and of forming the group.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._lock = threading.Lock()
        self._interruptible = Interruptible()
        self._ended = 0
        self._generation = 0
        self._inodes: frozenset[int] = frozenset()
        self.store: Store = HashStore()

    def form(self, generation: int, store: str, members: Sequence[str], worker: str) -> None:
        """Connect to the store and to all other members; their order is the ranks'.

        Parameters
        ----------
        store : str
            ``host:port``; empty for a worker alone.

        Raises
        ------
        RuntimeError
            If a member does not come, or the generation is ended meanwhile.
        """
        before = frozenset(inode for inode, _ in sockets())
        with self._lock:
            self._generation, self._inodes = generation, frozenset()
        rank, size = members.index(worker), len(members)
        self.store, gloo = self._interruptible.call(
            lambda: self._meet(generation, store, rank, size), self.check
        )
        dist.init_process_group(
            _BACKEND, store=self.store, rank=rank, world_size=size, pg_options=gloo
        )
        with self._lock, contextlib.suppress(OSError):
            self._inodes = gloo_connections(before, size - 1)
        self.check()

    def _meet(self, generation: int, address: str, rank: int, size: int) -> _Connected:
        """Connect once all members are there: gloo waits for one that is not, whatever happens."""
        base = _client(address, lambda: self._ended >= generation) if address else HashStore()
        store = PrefixStore(f"torchloom/{generation}", base)
        store.set(f"here/{rank}", "")
        there = [f"here/{peer}" for peer in range(size)]
        end_s = time.monotonic() + self._timeout.total_seconds()
        while not store.check(there):
            if self._ended >= generation or time.monotonic() > end_s:
                raise RuntimeError(f"not all members of generation {generation} have come")
            time.sleep(_LOOK_S)
        gloo = dist.ProcessGroupGloo(store, rank, size, self._timeout)
        gloo._set_sequence_number_for_group()
        return _Connected(store, gloo)

    def wait(self, work: dist.Work) -> None:
        """Wait for a receive or collective of the present generation.

        gloo forgets a receive whose message has begun to arrive as its peer ends.

        Raises
        ------
        RuntimeError
            If it fails, or the generation is ended meanwhile.
        """
        self._interruptible.call(work.wait, self.check)

    def get(self, key: str) -> bytes:
        """Wait for a value in the generation's store.

        Raises
        ------
        RuntimeError
            If the generation is ended meanwhile.
        """
        while not self.store.check([key]):
            self.check()
            time.sleep(_LOOK_S)
        return self.store.get(key)

    @property
    def is_over(self) -> bool:
        """Whether the present generation is ended."""
        return self._ended >= self._generation

    def check(self) -> None:
        """Raise RuntimeError if the present generation is ended."""
        if self.is_over:
            raise RuntimeError(f"generation {self._generation} is over")

    def gather(
        self, name: str, worker: str, text: str, members: Sequence[str], at_most_s: float
    ) -> list[str]:
        """Return the texts of all members, once each has called this for ``name``.

        It returns once all have read them: the member whose store it is may end at once.

        Raises
        ------
        RuntimeError
            If the generation ends, or a member does not come.
        """
        self.store.set(f"{name}/{worker}", text)
        keys = [f"{name}/{member}" for member in members]
        if not self._come(keys, at_most_s, lambda: self.is_over):
            self.check()
            raise RuntimeError(f"need all workers within {at_most_s:g} s, one has not come")
        texts = [self.store.get(key).decode() for key in keys]
        with contextlib.suppress(RuntimeError):  # the store is gone: its owner has waited
            self.store.set(f"{name}/{worker}/read", "")
            self._come([f"{key}/read" for key in keys], _READ_S, lambda: False)
        return texts

    def _come(self, keys: Sequence[str], at_most_s: float, is_over: Callable[[], bool]) -> bool:
        """Wait for keys in the store; return whether they have come in time."""
        end_s = time.monotonic() + at_most_s
        while not (are_there := self.store.check(list(keys))) and time.monotonic() < end_s:
            if is_over():
                return self.store.check(list(keys))
            time.sleep(_LOOK_S)
        return are_there

    def end(self, generation: int) -> None:
        """End all that this process waits for in this generation; called by another thread."""
        with self._lock:
            self._ended = max(self._ended, generation)
            if generation != self._generation:
                return
            shut(self._inodes, socket.SHUT_RDWR)
        self._interruptible.interrupt(RuntimeError(f"generation {generation} is over"))

    def leave(self) -> None:
        """Close all connections of the present generation."""
        self.end(self._generation)
        self.store = HashStore()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def _client(store: str, is_over: Callable[[], bool]) -> Store:
    """Return a new connection to a worker's store; RuntimeError if there is none.

    Once in some hundred times torch's store leaves a connection without an answer until it is
    closed, and others with it: so the first attempts are short. While nobody listens there are
    pauses between them; else generations would follow each other at once.
    """
    host, _, port = store.rpartition(":")
    attempt = _FIRST_ATTEMPT
    while True:
        try:  # torch tries for long to connect to a port that nobody listens on
            socket.create_connection((host, int(port)), attempt.total_seconds()).close()
            found = TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=attempt
            )
        except (OSError, RuntimeError) as error:
            if 2 * attempt > _ANSWER or is_over():
                why = getattr(error, "strerror", "") or reason_of(error)
                raise RuntimeError(f"no store at {store}: {why}") from None
            if isinstance(error, OSError):
                time.sleep(attempt.total_seconds())
            attempt *= 2
        else:
            found.set_timeout(_ANSWER)
            return found


def reason_of(error: BaseException) -> str:
    """Return gloo's reason without its source file, and without its advice."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[\S*\] ", "", line).split(". ")[0][:200]
