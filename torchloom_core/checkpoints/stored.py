"""Complete checkpoints, and their bytes, each against its digest."""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import TypeVar

import msgspec

from torchloom_core.checkpoints.layout import (
    FORMAT,
    MANIFEST,
    Folder,
    Manifest,
    Piece,
    Shard,
    read_folder,
    shard_file,
    tensors_file,
)
from torchloom_core.checkpoints.storage import Storage
from torchloom_core.floor.errors import CheckpointError

_T = TypeVar("_T")


def complete_folders(storage: Storage) -> list[Folder]:
    """Return the complete checkpoints of a place, the newest first."""
    found = sorted(filter(None, map(read_folder, storage.folders())), reverse=True)
    return [folder for folder in found if MANIFEST in storage.files(str(folder))]


def read_manifest(storage: Storage, folder: str) -> Manifest:
    """Return the manifest of a checkpoint; CheckpointError if it cannot be used."""
    found: Manifest = _decoded(storage, folder, MANIFEST, Manifest)[0]
    if found.format > FORMAT:
        raise _fault(storage, folder, MANIFEST, f"need format <= {FORMAT}, was {found.format}")
    return found


class Checkpoint:
    """A complete checkpoint, opened: its manifest and all shards, checked against their digests.

    Raises CheckpointError if a file is missing, damaged, or of a later version.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage = storage
        self.folder = folder
        self.manifest = read_manifest(storage, folder)
        self.shards = [self._shard(one.rank, one.sha256) for one in self.manifest.shards]

    @cached_property
    def pieces(self) -> dict[tuple[str, tuple[int, ...]], tuple[int, Piece]]:
        """The pieces by name and offsets, each with the rank that has it; of equals the first."""
        found: dict[tuple[str, tuple[int, ...]], tuple[int, Piece]] = {}
        for shard in self.shards:
            for piece in shard.pieces:
                found.setdefault((piece.name, piece.offsets), (shard.rank, piece))
        return found

    def read(self, rank: int, piece: Piece) -> bytearray:
        """Return the bytes of a piece; CheckpointError if a bit of it has changed."""
        file = tensors_file(rank)
        try:
            with self.storage.open(f"{self.folder}/{file}") as opened:
                opened.seek(piece.at)
                data = bytearray(piece.bytes)
                view, at = memoryview(data), 0
                while at < len(data) and (count := opened.readinto(view[at:])):  # type: ignore[attr-defined]
                    at += count
        except OSError as error:
            raise self._fault(file, f"cannot be read: {error.strerror or error}") from None
        if at < len(data):
            raise self._fault(file, f"{piece.name}: it is cut off")
        if hashlib.sha256(data).hexdigest() != piece.sha256:
            raise self._fault(
                file, f"{piece.name}: need sha256 {piece.sha256[:12]}..., was another"
            )
        return data

    def verify(self) -> Iterator[int]:
        """Read and check all tensors; yield the bytes of each. Raises CheckpointError."""
        for shard in self.shards:
            for piece in shard.pieces:
                self.read(shard.rank, piece)
                yield piece.bytes

    def _shard(self, rank: int, sha256: str) -> Shard:
        file = shard_file(rank)
        shard, data = _decoded(self.storage, self.folder, file, Shard)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise self._fault(file, f"its sha256 is not {sha256[:12]}...")
        return shard

    def _fault(self, file: str, text: str) -> CheckpointError:
        return _fault(self.storage, self.folder, file, text)


def _decoded(storage: Storage, folder: str, file: str, kind: type[_T]) -> tuple[_T, bytes]:
    """Return the content of a JSON file, and its bytes."""
    try:
        with storage.open(f"{folder}/{file}") as opened:
            data = opened.read()
        return msgspec.json.decode(data, type=kind), data
    except OSError as error:
        why = f"cannot be read: {error.strerror or error}"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        why = str(error)
    raise _fault(storage, folder, file, why)


def _fault(storage: Storage, folder: str, file: str, text: str) -> CheckpointError:
    return CheckpointError(f"{storage.name}/{folder}/{file}: {text}")
