"""Gradients reduced over the workers: of dense layers over all, of an expert over its holders.

Each is the sum of all workers' gradients, divided by the number of replicas.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter

from torchloom_threadlet.experts.peers import Peers, ordered_sum


def reduce_dense(parameters: Iterable[Parameter], peers: Peers, replicas: int) -> None:
    """Reduce the gradients over all workers; a missing one counts as zeros."""
    weights = list(parameters)
    set_gradients(weights, peers.sum(flat_gradients(weights)) / replicas)


def reduce_experts(
    weights: Mapping[int, Sequence[Parameter]],
    holders: Sequence[Sequence[int]],
    peers: Peers,
    replicas: int,
) -> None:
    """Reduce the gradients of each own expert over its holders, always in the same order.

    So all copies of an expert stay equal to the bit.

    Parameters
    ----------
    weights
        By own expert.
    holders : sequence of sequence of int, (experts,)
        Ranks.
    """
    shared: dict[tuple[int, ...], list[int]] = {}
    for expert in weights:
        shared.setdefault(tuple(holders[expert]), []).append(expert)
    of_ranks = {
        ranks: [weight for expert in experts for weight in weights[expert]]
        for ranks, experts in shared.items()
    }
    own = {ranks: flat_gradients(parameters) for ranks, parameters in of_ranks.items()}
    for ranks, flat in own.items():
        parts = {rank: flat if rank == peers.rank else torch.empty_like(flat) for rank in ranks}
        others = [rank for rank in ranks if rank != peers.rank]
        tag = shared[ranks][0]
        peers.exchange(dict.fromkeys(others, flat), {rank: parts[rank] for rank in others}, tag)
        set_gradients(of_ranks[ranks], ordered_sum([*parts.values()]) / replicas)


def flat_gradients(weights: Sequence[Parameter]) -> Tensor:
    """Return the gradients one after the other, ``(numbers,)``; zeros where there is none."""
    if not weights:
        return torch.empty(0, dtype=torch.float32, device="cpu")
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
