"""Store the slots of a rank: its files, and the manifest once all ranks have theirs."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import xxhash

from torchloom_core.checkpoints.layout import (
    MANIFEST,
    Folder,
    Manifest,
    Piece,
    Shard,
    ShardFile,
    manifest_json,
    read_folder,
    shard_file,
    tensors_file,
)
from torchloom_core.checkpoints.storage import Storage
from torchloom_core.checkpoints.stored import read_manifest
from torchloom_core.floor.errors import CheckpointError
from torchloom_threadlet.checkpoint.writer.orders import Order
from torchloom_threadlet.checkpoint.writer.pace import Pace

_AT_ONCE = 1 << 22
_LOOK_S = 0.05
_COMPLETE_S, _HOPELESS_S = 600.0, 10.0


class Part:
    """A rank's part of a checkpoint in a slot: hashed once for all tiers, by the first.

    Attributes
    ----------
    base : str
        The folder of the checkpoint without which it cannot be read; "": none.
    bytes : int
        Of its tensors; known once they were written.
    """

    base = ""

    def __init__(self, order: Order, slot: memoryview) -> None:
        self.order = order
        self.folder = str(Folder(order.generation, order.step, order.token))
        self.bytes = order.bytes
        self.slot = slot
        self._described = b""
        self._lock = threading.Lock()

    def tensors(self) -> Iterator[memoryview]:
        """Yield the bytes of the tensors, one after another."""
        return self._chunks(0, self.order.bytes)

    def shard(self) -> Shard:
        """Return what the slot says that it has, without digests."""
        end = self.order.bytes + self.order.described
        shard: Shard = msgspec.json.decode(self.slot[self.order.bytes : end], type=Shard)
        return shard

    def tensor(self, piece: Piece) -> memoryview:
        """Return the bytes of a piece."""
        return self.slot[piece.at : piece.at + piece.bytes]

    def described(self) -> bytes:
        """Return the JSON of the :class:`Shard`, with the digest of each piece."""
        with self._lock:
            if not self._described:
                shard = self.shard()
                pieces = []
                for piece in shard.pieces:
                    digest = xxhash.xxh3_128()
                    for data in self._chunks(piece.at, piece.at + piece.bytes):
                        digest.update(data)
                    pieces.append(msgspec.structs.replace(piece, xxh3=digest.hexdigest()))
                shard = msgspec.structs.replace(shard, pieces=tuple(pieces))
                self._described = msgspec.json.encode(shard)
        return self._described

    def _chunks(self, begin: int, end: int) -> Iterator[memoryview]:
        for at in range(begin, end, _AT_ONCE):
            yield self.slot[at : min(at + _AT_ONCE, end)]


def store(storage: Storage, part: Part, pace: Pace | None) -> int:
    """Write the tensors, then the shard that names them; return the bytes of both."""
    tensors = part.tensors() if pace is None else pace.limit(part.tensors())
    storage.write(f"{part.folder}/{tensors_file(part.order.rank)}", tensors)
    described = part.described()
    storage.write(f"{part.folder}/{shard_file(part.order.rank)}", [described])
    return part.bytes + len(described)


def complete(storage: Storage, part: Part, is_hopeless: Callable[[], bool]) -> str:
    """Wait for the other ranks' shards and write the manifest; return why not, or "".

    If that is hopeless, it waits a few seconds only.
    """
    order = part.order
    if part.base and MANIFEST not in storage.files(part.base):
        return f"its base {part.base} is not complete"
    names = {shard_file(rank) for rank in range(order.ranks)}
    end_s = time.monotonic() + _COMPLETE_S
    while missing := names.difference(storage.files(part.folder)):
        if is_hopeless():
            end_s = min(end_s, time.monotonic() + _HOPELESS_S)
        if time.monotonic() > end_s:
            return f"{len(missing)} of {order.ranks} ranks have not saved"
        time.sleep(_LOOK_S)
    manifest = Manifest(
        generation=order.generation,
        step=order.step,
        run=order.run,
        saved_ns=time.time_ns(),
        base=part.base,
        shards=tuple(_shard(storage, part.folder, rank) for rank in range(order.ranks)),
    )
    storage.write(f"{part.folder}/{MANIFEST}", [manifest_json(manifest)])
    return ""


def _shard(storage: Storage, folder: str, rank: int) -> ShardFile:
    with storage.open(f"{folder}/{shard_file(rank)}") as file:
        data = file.read()
    shard = msgspec.json.decode(data, type=Shard)
    end = max((piece.end for piece in shard.pieces), default=0)
    return ShardFile(rank=rank, bytes=end, sha256=hashlib.sha256(data).hexdigest())


def forget(storage: Storage, keep: int, keep_every_s: float) -> None:
    """Remove old complete checkpoints, and unfinished ones that are older than the newest.

    The newest ``keep`` stay, 0: all; and with ``keep_every_s`` above 0 the first one of each such
    span of time; and the bases of those that stay. Raises what reading their manifests raises.
    """
    if not keep:
        return
    found = sorted(filter(None, map(read_folder, storage.folders())))
    complete_ones = [one for one in found if MANIFEST in storage.files(str(one))]
    stay: set[Folder | None] = {
        *complete_ones[-keep:],
        *(one for one in found if one > complete_ones[-1]),
    }
    if keep_every_s > 0:
        stay |= _first_of_spans(storage, complete_ones, keep_every_s)
    small = [one for one in complete_ones if one in stay and not one.is_exact]
    stay |= {read_folder(read_manifest(storage, str(one)).base) for one in small}
    for folder in found:
        if folder not in stay:
            storage.remove(str(folder))


def forget_unfinished(storage: Storage, part: Part) -> None:
    """Remove what is not complete, but for this part's: nobody goes on with it."""
    for folder in map(str, filter(None, map(read_folder, storage.folders()))):
        if folder != part.folder and MANIFEST not in storage.files(folder):
            storage.remove(folder)


def _first_of_spans(storage: Storage, complete_ones: list[Folder], span_s: float) -> set[Folder]:
    firsts: dict[int, Folder] = {}
    for folder in complete_ones:
        with suppress(CheckpointError):
            saved_ns = read_manifest(storage, str(folder)).saved_ns
            firsts.setdefault(int(saved_ns / 1e9 / span_s), folder)
    return set(firsts.values())


def forget_others(storage: Storage, part: Part) -> None:
    """Remove what is older than this part, but for the newest complete checkpoint."""
    order = part.order
    here = Folder(order.generation, order.step, order.token)
    for folder in filter(None, map(read_folder, storage.folders())):
        if folder < here and str(folder) != order.good:
            storage.remove(str(folder))
