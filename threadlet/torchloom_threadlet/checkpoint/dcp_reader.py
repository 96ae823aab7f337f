"""Lets ``torch.distributed.checkpoint`` read a checkpoint, by any world.

``dcp.load({"model": model.state_dict()}, storage_reader=CheckpointReader(checkpoint))``: no pickle
is read, the metadata are made from JSON.
"""

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from torchloom_core.checkpoints.layout import Piece
from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_threadlet.checkpoint.json_state import dtype_named


class CheckpointReader(StorageReader):
    """Lets ``torch.distributed.checkpoint.load`` read a checkpoint of torchLoom's."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def reset(self, checkpoint_id: Any = None) -> None:
        """Begin another load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return what there is, made from the shards' JSON."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for _, piece in self._checkpoint.pieces.values():
            tensor = tensors.setdefault(
                piece.name,
                TensorStorageMetadata(
                    properties=TensorProperties(dtype=dtype_named(piece.dtype)),
                    size=torch.Size(piece.shape),
                    chunks=[],
                ),
            )
            offsets, sizes = torch.Size(piece.offsets), torch.Size(piece.sizes)
            tensor.chunks.append(ChunkStorageMetadata(offsets, sizes))
        return Metadata(state_dict_metadata=dict(tensors))

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Need nothing more."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Take the plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Take the plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the pieces of a plan, each once."""
        by_piece: dict[tuple[str, tuple[int, ...]], list[Any]] = {}
        for item in plan.items:
            index = item.storage_index
            by_piece.setdefault((index.fqn, tuple(index.offset or ())), []).append(item)
        for key, items in by_piece.items():
            tensor = self._tensor(*self._checkpoint.pieces[key])
            for item in items:
                part = tensor
                for dim, (begin, size) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    part = part.narrow(dim, begin, size)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _tensor(self, rank: int, piece: Piece) -> torch.Tensor:
        data, dtype = self._checkpoint.read(rank, piece), dtype_named(piece.dtype)
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.view(piece.sizes)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return False: it is made from an opened checkpoint."""
        return False
