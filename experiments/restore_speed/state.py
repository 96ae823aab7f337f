"""The state that is restored, as a checkpoint of one rank and as tensors."""

import hashlib
import time

import msgspec
import torch
import xxhash

from torchloom_core.checkpoints.layout import (
    MANIFEST,
    Folder,
    Manifest,
    Piece,
    Shard,
    ShardFile,
    manifest_json,
    shard_file,
    tensors_file,
)
from torchloom_core.checkpoints.storage import Storage

TENSORS, SEED, STEP = 48, 7, 100
FOLDER = str(Folder(1, STEP, "0123abcd"))


def make(megabytes: int) -> dict[str, torch.Tensor]:
    """Return the tensors, the same in each process."""
    generator = torch.Generator().manual_seed(SEED)
    count = megabytes * 1_000_000 // 4 // TENSORS
    return {f"t{number}": torch.randn(count, generator=generator) for number in range(TENSORS)}


def save(storage: Storage, state: dict[str, torch.Tensor]) -> None:
    """Write the state as a complete checkpoint of one rank."""
    pieces, at = [], 0
    for name, tensor in state.items():
        pieces.append(
            Piece(
                name=name,
                dtype="float32",
                shape=tuple(tensor.shape),
                offsets=(0,),
                sizes=tuple(tensor.shape),
                at=at,
                bytes=tensor.nbytes,
                xxh3=xxhash.xxh3_128_hexdigest(memoryview(tensor.numpy()).cast("B")),
            )
        )
        at += tensor.nbytes
    shard = msgspec.json.encode(Shard(rank=0, pieces=tuple(pieces)))
    sha256 = hashlib.sha256(shard).hexdigest()
    manifest = Manifest(
        generation=1,
        step=STEP,
        saved_ns=time.time_ns(),
        shards=(ShardFile(rank=0, bytes=at, sha256=sha256),),
    )
    parts = (memoryview(tensor.numpy()).cast("B") for tensor in state.values())
    storage.write(f"{FOLDER}/{tensors_file(0)}", parts)
    storage.write(f"{FOLDER}/{shard_file(0)}", [shard])
    storage.write(f"{FOLDER}/{MANIFEST}", [manifest_json(manifest)])
