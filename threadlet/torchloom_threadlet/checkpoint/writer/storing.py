"""Store the slots of a rank: its files, and the manifest once all ranks have theirs."""

import hashlib
import mmap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from torchloom_core.checkpoints.layout import (
    MANIFEST,
    Folder,
    Manifest,
    Shard,
    ShardFile,
    read_folder,
    shard_file,
    tensors_file,
)
from torchloom_core.checkpoints.storage import Storage
from torchloom_core.floor.errors import CheckpointError, TorchloomError
from torchloom_threadlet.checkpoint.writer.orders import Order, Report

_AT_ONCE = 1 << 22
_LOOK_S = 0.05
_COMPLETE_S, _AWAITED_S = 600.0, 10.0


class Writer:
    """Stores the orders of one rank, one after another."""

    def __init__(self, storage: Storage, slots: Path) -> None:
        self._storage = storage
        with slots.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._memory)

    def store(self, order: Order) -> None:
        """Write the tensors, with a digest of each, and then the shard that names them."""
        if order.rank == 0 and (other := self._storage.lock(order.owner)):
            raise CheckpointError(f"{self._storage.name}: {other} saves its checkpoints there")
        folder = str(Folder(order.generation, order.step, order.token))
        size = len(self._view) // 2
        slot = self._view[order.slot * size : (order.slot + 1) * size]
        end = order.bytes + order.described
        shard = msgspec.json.decode(slot[order.bytes : end], type=Shard)
        pieces = []
        for piece in shard.pieces:
            digest = hashlib.sha256()
            for data in _chunks(slot, piece.at, piece.at + piece.bytes):
                digest.update(data)
            pieces.append(msgspec.structs.replace(piece, sha256=digest.hexdigest()))
        tensors = f"{folder}/{tensors_file(order.rank)}"
        self._storage.write(tensors, _chunks(slot, 0, order.bytes))
        shard = msgspec.structs.replace(shard, pieces=tuple(pieces))
        self._storage.write(f"{folder}/{shard_file(order.rank)}", [msgspec.json.encode(shard)])

    def complete(self, order: Order, is_awaited: Callable[[], bool]) -> str:
        """Wait for the other ranks' shards and write the manifest; return why not, or "".

        With another order in sight it waits a few seconds only: a rank could not save.
        """
        folder = str(Folder(order.generation, order.step, order.token))
        names = {shard_file(rank) for rank in range(order.ranks)}
        end_s = time.monotonic() + _COMPLETE_S
        while missing := names.difference(self._storage.files(folder)):
            if is_awaited():
                end_s = min(end_s, time.monotonic() + _AWAITED_S)
            if time.monotonic() > end_s:
                return f"{len(missing)} of {order.ranks} ranks have not saved"
            time.sleep(_LOOK_S)
        manifest = Manifest(
            generation=order.generation,
            step=order.step,
            run=order.run,
            saved_ns=time.time_ns(),
            shards=tuple(self._shard(folder, rank) for rank in range(order.ranks)),
        )
        self._storage.write(f"{folder}/{MANIFEST}", [msgspec.json.encode(manifest)])
        return ""

    def _shard(self, folder: str, rank: int) -> ShardFile:
        with self._storage.open(f"{folder}/{shard_file(rank)}") as file:
            data = file.read()
        shard = msgspec.json.decode(data, type=Shard)
        end = max((piece.at + piece.bytes for piece in shard.pieces), default=0)
        return ShardFile(rank=rank, bytes=end, sha256=hashlib.sha256(data).hexdigest())

    def forget(self, keep: int) -> None:
        """Remove all but the newest ``keep`` complete checkpoints, and older unfinished ones."""
        found = sorted(filter(None, map(read_folder, self._storage.folders())))
        complete = [one for one in found if MANIFEST in self._storage.files(str(one))]
        stay = {*complete[-keep:], *(one for one in found if one > complete[-1])}
        for folder in found if keep else ():
            if folder not in stay:
                self._storage.remove(str(folder))


def _chunks(slot: memoryview, begin: int, end: int) -> Iterator[memoryview]:
    for at in range(begin, end, _AT_ONCE):
        yield slot[at : min(at + _AT_ONCE, end)]


def carry_out(writer: Writer, order: Order, is_awaited: Callable[[], bool]) -> Iterator[Report]:
    """Carry out one order, and yield what became of it."""
    base = {"slot": order.slot, "generation": order.generation, "step": order.step}
    begun_s = time.monotonic()

    def report(what: str, detail: str = "") -> Report:
        return Report(**base, what=what, seconds=time.monotonic() - begun_s, detail=detail)

    try:
        writer.store(order)
    except (OSError, TorchloomError, msgspec.MsgspecError) as error:
        yield report("failed", _line(error))
        return
    yield report("stored")
    if order.rank != 0:
        return
    try:
        if why := writer.complete(order, is_awaited):
            yield report("incomplete", why)
            return
    except (OSError, TorchloomError, msgspec.MsgspecError) as error:
        yield report("incomplete", _line(error))
        return
    yield report("complete")
    try:
        writer.forget(order.keep)
    except OSError as error:
        yield report("not_removed", _line(error))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
