"""Which rank saves which tensors: every part of the state once, spread over equal replicas."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from torchloom_core.checkpoints.layout import Piece

_ALIGNED = 64


class Replica(NamedTuple):
    """A rank among the ``ranks`` that have the same plain tensors; the first is ``number`` 0."""

    number: int
    ranks: int


def replica_of(models: Iterable[nn.Module]) -> Replica:
    """Return this rank's place among its replicas: DDP's ranks, or those of one mesh.

    A rank without either saves all that it has.
    """
    for model in models:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                group = module.process_group
                return Replica(dist.get_rank(group), dist.get_world_size(group))
        for weight in model.parameters():
            if isinstance(weight, DTensor):
                return Replica(int(any(weight.device_mesh.get_coordinate() or (1,))), 1)
    return Replica(0, 1)


def own_pieces(
    tensors: Mapping[str, Tensor], spread: frozenset[str], replica: Replica, rank: int
) -> list[tuple[Piece, Tensor]]:
    """Return what this rank saves, in a fixed order, with its place in the rank's file.

    ``spread``: names of plain tensors that are equal on all replicas, so any of them may save one.
    """
    owners = _owners({name: tensors[name] for name in sorted(spread)}, replica.ranks)
    found: list[tuple[Piece, Tensor]] = []
    at = 0
    for name, tensor in tensors.items():
        part = _part(name, tensor, owners.get(name, 0) == replica.number, rank)
        if part is None:
            continue
        offsets, local = part
        size = local.numel() * local.element_size()
        piece = Piece(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offsets=offsets,
            sizes=tuple(local.shape),
            at=at,
            bytes=size,
        )
        found.append((piece, local))
        at += -(-size // _ALIGNED) * _ALIGNED
    return found


def _part(
    name: str, tensor: Tensor, is_owner: bool, rank: int
) -> tuple[tuple[int, ...], Tensor] | None:
    if isinstance(tensor, DTensor):
        mesh = tensor.device_mesh
        coordinate = mesh.get_coordinate()
        copies = [i for i, placement in enumerate(tensor.placements) if not placement.is_shard()]
        if coordinate is None or any(coordinate[i] for i in copies):
            return None
        _, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
        local = tensor.to_local().detach()
        return (tuple(offsets), local) if local.numel() else None
    if name.startswith(f"rank{rank}.") or is_owner:
        return (0,) * tensor.dim(), tensor.detach()
    return None


def _owners(tensors: Mapping[str, Tensor], count: int) -> dict[str, int]:
    """Spread tensors over replicas: the largest first, each to the one with the fewest bytes."""
    if count == 1:
        return {}
    loads = [0] * count
    owners: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: (-tensors[name].nbytes, name)):
        owners[name] = loads.index(min(loads))
        loads[owners[name]] += tensors[name].nbytes
    return owners
