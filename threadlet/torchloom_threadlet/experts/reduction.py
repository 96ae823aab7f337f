"""Gradients reduced over the workers: of dense layers over all, of an expert over its holders.

Each is the sum of all workers' gradients, divided by the number of replicas.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter


def reduce_dense(
    parameters: Iterable[Parameter], group: ProcessGroup | None, replicas: int
) -> None:
    """Reduce the gradients over all workers, in one allreduce; a missing one counts as zeros."""
    weights = list(parameters)
    flat = flat_gradients(weights)
    if group is not None and len(flat):
        group.allreduce([flat]).wait()
    set_gradients(weights, flat / replicas)


def reduce_experts(
    weights: Mapping[int, Sequence[Parameter]],
    holders: Sequence[Sequence[int]],
    group: ProcessGroup | None,
    replicas: int,
) -> None:
    """Reduce the gradients of each own expert over its holders, always in the same order.

    So all copies of an expert stay equal to the bit.

    Parameters
    ----------
    weights
        By own expert.
    holders : sequence of sequence of int, (experts,)
        Ranks in the group.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for expert in weights:
        shared.setdefault(tuple(holders[expert]), []).append(expert)
    works, received = [], {}
    for ranks, experts in shared.items():
        flat = flat_gradients([weight for expert in experts for weight in weights[expert]])
        parts = [
            flat if group is None or rank == group.rank() else torch.empty_like(flat)
            for rank in ranks
        ]
        received[ranks] = parts
        for rank, part in zip(ranks, parts, strict=True):
            if group is not None and part is not flat:
                works.append(group.send([flat], rank, experts[0]))
                works.append(group.recv([part], rank, experts[0]))
    for work in works:
        work.wait()
    for ranks, experts in shared.items():
        total = received[ranks][0].clone()
        for part in received[ranks][1:]:
            total += part
        set_gradients(
            [weight for expert in experts for weight in weights[expert]], total / replicas
        )


def flat_gradients(weights: Sequence[Parameter]) -> Tensor:
    """Return the gradients one after the other, ``(numbers,)``; zeros where there is none."""
    if not weights:
        return torch.empty(0)
    return torch.cat(
        [
            weight.new_zeros(weight.numel()) if weight.grad is None else weight.grad.reshape(-1)
            for weight in weights
        ]
    )


def set_gradients(weights: Sequence[Parameter], flat: Tensor) -> None:
    """Set the gradients to parts of ``flat``."""
    parts = torch.split(flat, [weight.numel() for weight in weights]) if weights else ()
    for weight, part in zip(weights, parts, strict=True):
        weight.grad = part.view_as(weight)
