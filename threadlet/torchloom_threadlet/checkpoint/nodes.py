"""The nodes of the ranks that save together, and which of them keeps another's copy."""

import os
import secrets
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.checkpoints.storage import LocalFolder, Storage
from torchloom_threadlet.checkpoint.node_store.address import (
    living_trainers,
    mark_of,
    park,
    start_store,
    store_folder,
)
from torchloom_threadlet.checkpoint.saving_ranks import SavingRanks
from torchloom_threadlet.checkpoint.writer.orders import NodeAddress
from torchloom_threadlet.checkpoint.writer.tier_storage import client_of

_IDENTITY, _LONGEST = ".run/identity", 2000
_LOOPBACK = "127.0.0.1"
_ANY_OTHER = "192.0.2.1"
"""An address that no host has; nothing is sent to it, the route to it is looked up."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which ranks run.

    Attributes
    ----------
    name, rack : str
        As the worker's placement has them; the rack is "" where it is not known.
    store : NodeAddress, optional
        The store of its memory, None where it could not start.
    problem : str
        Why it could not, or "".
    trainer : str
        The mark of the rank's process in the folder of the memory.
    """

    name: str
    rack: str
    store: NodeAddress | None = None
    problem: str = ""
    trainer: str = ""


class Nodes:
    """The nodes of all ranks. Construct it on all ranks at once: they tell each other.

    ``is_alone``: no other ranks save at the path, as those of another replica group do.

    Attributes
    ----------
    folder : Path
        Of this node's memory.
    host : str
        The address by which other nodes reach it.
    here, home : Node
        This rank's node, and rank 0's.
    copy : Node or None
        The node that keeps a copy of what this one has.
    all : tuple of Node
        Each once.
    problem : str
        Why the memory of a node cannot be used, so that no rank uses any; or "".
    """

    def __init__(
        self, ranks: SavingRanks, node: str, rack: str, path: Storage, *, is_alone: bool
    ) -> None:
        self.host = _address(len(set(ranks.gather(socket.gethostname()))) > 1)
        store, problem, identity = None, "", ""
        try:
            identity = identity_of(path) if ranks.rank == 0 else ""
        except OSError as error:
            problem = f"{path.name}: {error.strerror or error}"
        self.folder = store_folder(ranks.first(identity), node)
        if not problem:
            try:
                store = NodeAddress(node=node, address=start_store(self.folder, self.host).text())
            except OSError as error:
                problem = str(error)
        trainer = mark_of(os.getpid())
        self.here = Node(name=node, rack=rack, store=store, problem=problem, trainer=trainer)
        texts = ranks.gather(msgspec.json.encode(self.here).decode())
        of_ranks = [msgspec.json.decode(text, type=Node) for text in texts]
        problem = next((one.problem for one in of_ranks if one.problem), "")
        if not problem and is_alone:
            problem = self._other_run({one.trainer for one in of_ranks})
        self.problem = next(filter(None, ranks.gather(problem)), "")
        self.home = of_ranks[0]
        self.all = tuple({one.name: one for one in of_ranks}.values())
        self.copy = copy_of(self.all, node)
        self.is_first_here = [one.name for one in of_ranks].index(node) == ranks.rank

    def _other_run(self, ours: set[str]) -> str:
        """Return that trainers of another run use this node's memory for the same path, or ""."""
        others = sorted(living_trainers(self.folder) - ours)
        return f"{self.here.name}: another run trains with the same path" if others else ""

    def park(self) -> None:
        """Note that this rank's process waits: its memory stays, and others may load it."""
        park(self.folder)

    def come_back(self) -> None:
        """Note that this rank's process trains again."""
        with suppress(OSError):
            start_store(self.folder, self.host)

    def other_trainers(self) -> set[str]:
        """Return the marks of trainers that use this node's memory, as it is parked."""
        return living_trainers(self.folder)

    def end(self) -> None:
        """Free this node's memory once its trainers have ended: the run is over."""
        if self.is_first_here and self.here.store is not None:
            with suppress(OSError):
                client_of(self.here.store).end()

    def others(self) -> list[Storage]:
        """Return the memory of the other nodes: first that of rank 0's, and of its copy."""
        home_copy = copy_of(self.all, self.home.name)
        first = [self.home.name, home_copy.name if home_copy is not None else ""]
        order = sorted(self.all, key=lambda node: (node.name not in first, node.name))
        return [
            client_of(node.store)
            for node in order
            if node.store is not None and node.name != self.here.name
        ]


def identity_of(path: Storage) -> str:
    """Return what tells a run's memory from that of another one.

    It is a file in the path, so that a run whose path was removed does not go on from memory; it
    names the path, so that a copy of the path does not either.
    """
    with suppress(FileNotFoundError), path.open(_IDENTITY) as file:
        there = file.read(_LONGEST).decode(errors="replace")
        if there.partition(" ")[2] == _where(path):
            return there
    token = secrets.token_hex(8)
    path.write(_IDENTITY, [f"{token} {_where(path)}".encode()])
    return f"{token} {_where(path)}"


def _where(path: Storage) -> str:
    """Return what a copy of a path does not have: the number of its folder, or its URL."""
    if isinstance(path, LocalFolder):
        path.path.mkdir(parents=True, exist_ok=True)
        return f"folder {path.path.stat().st_ino}"
    return path.name


def memory_folder(path: Storage, node: str) -> Path:
    """Return the folder of a node's memory for the run that saves at a path."""
    return store_folder(identity_of(path), node)


def copy_of(nodes: Sequence[Node], name: str) -> Node | None:
    """Return the node that keeps the copy of this one's memory: in another rack where it can be.

    The nodes stand in a ring by their racks, and the copy is kept one rack's length further, so
    that each node keeps one copy, and nodes of one rack keep none of each other's. Where a rack
    has more than half of the nodes, some copies stay in it. None: there is no other node.
    """
    ring = sorted(nodes, key=lambda node: (node.rack, node.name))
    if len(ring) < 2:
        return None
    largest = max(Counter(node.rack for node in ring).values())
    step = largest if 2 * largest <= len(ring) else len(ring) // 2
    at = next(i for i, node in enumerate(ring) if node.name == name)
    return ring[(at + step) % len(ring)]


def _address(is_several: bool) -> str:
    """Return the address by which other hosts of the job reach this one."""
    if not is_several:
        return _LOOPBACK
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((_ANY_OTHER, 9))
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())
