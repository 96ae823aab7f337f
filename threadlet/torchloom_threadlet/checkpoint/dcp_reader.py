"""Lets ``torch.distributed.checkpoint`` read a checkpoint, by any world.

``dcp.load({"model": model.state_dict()}, storage_reader=CheckpointReader(checkpoint))``: no pickle
is read, the metadata are made from JSON.
"""

import ctypes
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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

from torchloom_core.checkpoints.stored import Checkpoint
from torchloom_threadlet.checkpoint.json_state import dtype_named

_AT_ONCE = max(2, min(4, os.cpu_count() or 1))
"""More than there are cores take turns, which was slower."""


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
        """Read the pieces of a plan, each once, several at a time."""
        by_piece: dict[tuple[str, tuple[int, ...]], list[Any]] = {}
        for item in plan.items:
            index = item.storage_index
            by_piece.setdefault((index.fqn, tuple(index.offset or ())), []).append(item)
        gpus = _gpus(planner.resolve_tensor(item) for item in plan.items)
        _synchronize(gpus)  # threads have other streams than the training
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for read in [
                threads.submit(self._read, key, items, planner) for key, items in by_piece.items()
            ]:
                read.result()
        if gpus:
            _synchronize(gpus)
            torch._C._host_emptyCache()  # torch would keep the page-locked memory
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(
        self, key: tuple[str, tuple[int, ...]], items: list[Any], planner: LoadPlanner
    ) -> None:
        rank, piece = self._checkpoint.pieces[key]
        targets = [planner.resolve_tensor(item).detach() for item in items]
        whole = targets[0]
        dtype = dtype_named(piece.dtype)
        is_direct = (
            len(items) == 1
            and tuple(items[0].lengths) == piece.sizes
            and whole.dtype == dtype
            and whole.is_contiguous()
            and whole.device.type == "cpu"
        )
        if not is_direct:
            whole = _buffer(piece.sizes, dtype, whole.device)
        self._checkpoint.read_into(rank, piece, _bytes_of(whole))
        for item, target in zip(items, targets, strict=True):
            if not is_direct:
                part = whole
                for dim, (begin, size) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    part = part.narrow(dim, begin, size)
                target.copy_(part, non_blocking=target.is_cuda)
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return False: it is made from an opened checkpoint."""
        return False


def _gpus(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def _synchronize(gpus: Iterable[torch.device]) -> None:
    for gpu in gpus:
        torch.cuda.synchronize(gpu)


def _buffer(sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return memory of the host, page-locked for a GPU where that is possible."""
    if device.type == "cuda":
        with suppress(RuntimeError), torch.cuda.device(device):
            return torch.empty(tuple(sizes), dtype=dtype, device="cpu", pin_memory=True)
    return torch.empty(tuple(sizes), dtype=dtype, device="cpu")


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous tensor of the CPU."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
