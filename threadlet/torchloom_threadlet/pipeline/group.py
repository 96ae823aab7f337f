"""The gloo group of a generation, and how another thread ends whatever waits in it."""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from torchloom_threadlet.gloo_sockets import gloo_connections, open_sockets, shut, sockets

_MEETING = timedelta(seconds=5)
"""How long the workers of a generation may take to connect to each other."""


class Group:
    """torch's default group, formed anew for each generation.

    Parameters
    ----------
    timeout_s : float
        Of one send, receive or collective.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._lock = threading.Lock()
        self._ended = 0
        self._generation = 0
        self._before: frozenset[int] = frozenset()
        self._store_port = 0
        self._inodes: frozenset[int] = frozenset()
        self._peers = 0
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
        with self._lock:
            self._before = frozenset(inode for inode, _ in sockets())
            self._generation, self._inodes = generation, frozenset()
            self._peers = len(members) - 1
            self._store_port = int(store.rpartition(":")[2] or 0)
        self.check()
        base = self._client(store) if store else HashStore()
        self.store = PrefixStore(f"torchloom/{generation}", base)
        self.check()
        # A part of the keys in the store; one that could not be formed would count here alone.
        dist.distributed_c10d._world.group_count = 0
        dist.init_process_group(
            "gloo",
            store=self.store,
            rank=members.index(worker),
            world_size=len(members),
            timeout=_MEETING,
        )
        dist.distributed_c10d._set_pg_timeout(self._timeout)
        with self._lock, contextlib.suppress(OSError):
            self._inodes = gloo_connections(self._before, self._peers)
        self.check()

    @staticmethod
    def _client(store: str) -> Store:
        """Return a new connection to a worker's store; RuntimeError if there is none."""
        host, _, port = store.rpartition(":")
        try:  # torch tries for long to connect to a port that nobody listens on
            socket.create_connection((host, int(port)), _MEETING.total_seconds()).close()
        except OSError as error:
            raise RuntimeError(f"no store at {store}: {error.strerror or error}") from None
        return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=_MEETING)

    @property
    def is_over(self) -> bool:
        """Whether the present generation is ended."""
        return self._ended >= self._generation

    def check(self) -> None:
        """Raise RuntimeError if the present generation is ended."""
        if self.is_over:
            raise RuntimeError(f"generation {self._generation} is over")

    def end(self, generation: int) -> None:
        """End all that this process waits for in this generation; called by another thread."""
        with self._lock:
            self._ended = max(self._ended, generation)
            if generation != self._generation:
                return
            inodes = self._inodes
            if not inodes:  # it is being formed
                with contextlib.suppress(OSError):
                    inodes = gloo_connections(self._before, self._peers) | self._to_store()
            shut(inodes, socket.SHUT_RDWR)

    def leave(self) -> None:
        """Close all connections of the present generation."""
        self.end(self._generation)
        self.store = HashStore()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    def _to_store(self) -> frozenset[int]:
        found = set()
        new = frozenset(inode for inode, _ in sockets()) - self._before
        for opened in open_sockets(new):
            if opened.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            with contextlib.suppress(OSError, IndexError):  # IndexError: not TCP
                if opened.getpeername()[1] == self._store_port:
                    found.add(os.fstat(opened.fileno()).st_ino)
        return frozenset(found)
