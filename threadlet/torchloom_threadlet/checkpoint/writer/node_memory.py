"""Checkpoints in the memory of nodes: this one's, with a copy of each file on another."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from torchloom_core.checkpoints.layout import MANIFEST, is_tensors_file
from torchloom_core.checkpoints.storage import LocalFolder, Storage
from torchloom_threadlet.checkpoint.node_store.room import Refused, Room
from torchloom_threadlet.checkpoint.writer.pace import Pace

_AT_ONCE = 1 << 20


class NodeMemory:
    """A :class:`Storage` in this node's memory, of which other nodes get a copy.

    Files are read here only; what other nodes have is read as sources of their own. A copy that
    fails costs no file here: :meth:`take_problem` says why.

    Parameters
    ----------
    folder : Path
        Of this node's memory.
    copy : Storage, optional
        Another node's store, which gets all files.
    home : Storage, optional
        The store of rank 0's node, if it is another one: it gets all that are no tensors, so that
        rank 0 sees which ranks have saved.
    pace : Pace
        The limit of what is sent.
    serve : callable
        Starts the store that serves this folder to other nodes, if it does not run.
    """

    def __init__(
        self,
        folder: Path,
        copy: Storage | None,
        home: Storage | None,
        pace: Pace,
        serve: Callable[[], object],
    ) -> None:
        self._serve = serve
        self._own, self._room = LocalFolder(folder), Room(folder)
        self._copy, self._home, self._pace = copy, home, pace
        self._problem = ""
        self.name = "memory"

    def folders(self) -> list[str]:
        """Return the names of this node's folders."""
        return self._own.folders()

    def files(self, folder: str) -> list[str]:
        """Return the names of this node's files."""
        return self._own.files(folder)

    def open(self, name: str) -> BinaryIO:
        """Open a file of this node."""
        return self._own.open(name)

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        """Write a file here, then to the other nodes."""
        folder, _, file = name.partition("/")
        if is_tensors_file(file):
            try:
                self._serve()
            except OSError as error:
                self._problem = str(error)
        self._own.write(name, self._while_there_is_room(parts))
        if self._home is not None and not is_tensors_file(file):
            self._send(self._home, name)
        if self._copy is None:
            return
        if file == MANIFEST:
            with suppress(OSError):
                there = set(self._copy.files(folder))
                for other in set(self._own.files(folder)) - there - {MANIFEST}:
                    self._send(self._copy, f"{folder}/{other}")
        self._send(self._copy, name)

    def remove(self, folder: str) -> None:
        """Remove a folder here and of the copies; another rank may have done so."""
        with suppress(FileNotFoundError):
            self._own.remove(folder)
        if self._copy is not None:
            with suppress(OSError):
                self._copy.remove(folder)

    def lock(self, owner: str) -> str:
        """Grant it: the path of the checkpoints tells two savers apart."""
        return ""

    def unlock(self) -> None:
        """Need nothing."""

    def take_problem(self) -> str:
        """Return why a copy failed since the last call, or ""."""
        problem, self._problem = self._problem, ""
        return problem

    def _while_there_is_room(
        self, parts: Iterable[bytes | memoryview]
    ) -> Iterator[bytes | memoryview]:
        for part in parts:
            try:
                self._room.take(len(part))
            except Refused as error:
                raise OSError(str(error)) from None
            yield part

    def _send(self, store: Storage, name: str) -> None:
        try:
            with self._own.open(name) as file:
                parts = iter(lambda: file.read(_AT_ONCE), b"")
                store.write(name, self._pace.limit(parts))
        except OSError as error:
            self._problem = f"{store.name}: {error.strerror or error}"
