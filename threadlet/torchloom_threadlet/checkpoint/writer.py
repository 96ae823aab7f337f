"""The process that stores what a rank has copied into its slots; it outlives the rank.

It runs in the idle class, imports no torch, and answers each order with one line. When the trainer
is gone it stores what is complete, and ends.
"""

import hashlib
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
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
from torchloom_core.checkpoints.storage import Storage, storage_at
from torchloom_core.floor.errors import CheckpointError, TorchloomError

_AT_ONCE = 1 << 22
_LOOK_S = 0.05
_COMPLETE_S, _AWAITED_S = 600.0, 10.0


class Order(msgspec.Struct, kw_only=True, frozen=True):
    """What the trainer asks: store a slot as a rank's part of a checkpoint.

    The slot has ``bytes`` of tensors, and after them the JSON of a :class:`Shard`, ``described``
    bytes. ``keep``: how many complete checkpoints stay, 0: all.
    """

    slot: int
    generation: int
    step: int
    token: str
    run: str
    ranks: int
    rank: int
    keep: int
    bytes: int
    described: int
    owner: str


class Report(msgspec.Struct, kw_only=True, frozen=True):
    """What became of an order: ``stored`` its slot is free again; ``complete`` for all ranks."""

    slot: int
    generation: int
    step: int
    what: str
    seconds: float
    detail: str = ""


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


def _carry_out(writer: Writer, order: Order, is_awaited: Callable[[], bool]) -> Iterator[Report]:
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
        yield report("complete")
        writer.forget(order.keep)
    except (OSError, TorchloomError, msgspec.MsgspecError) as error:
        yield report("incomplete", _line(error))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _be_idle() -> None:
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        os.nice(19)


def main() -> None:
    """Serve the trainer at the other end of the socket, then store what is left."""
    number, place, slots = sys.argv[1:4]
    if os.fork():  # no child of the trainer's: what kills its children must not end a save
        os._exit(0)
    _be_idle()
    link = socket.socket(fileno=int(number))
    orders = Orders(link)
    writer = Writer(storage_at(place), Path(slots))
    for order in orders:
        for report in _carry_out(writer, order, orders.is_waiting):
            with suppress(OSError):
                link.sendall(msgspec.json.encode(report) + b"\n")
    Path(slots).unlink(missing_ok=True)


class Orders:
    """Iterate over a trainer's orders until it is gone; a line that was cut off is none."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lines: list[bytes] = []
        self._rest = b""
        self._is_over = False

    def __iter__(self) -> Iterator[Order]:
        while True:
            while not self._lines and not self._is_over:
                self._read()
            if not self._lines:
                return
            yield msgspec.json.decode(self._lines.pop(0), type=Order)

    def is_waiting(self) -> bool:
        """Return whether another order is there."""
        while not self._is_over and select.select([self._link], [], [], 0)[0]:
            self._read()
        return bool(self._lines)

    def _read(self) -> None:
        try:
            data = self._link.recv(1 << 20)
        except ConnectionError:
            data = b""
        self._is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += lines


if __name__ == "__main__":
    main()
