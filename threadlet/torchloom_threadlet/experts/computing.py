"""The outputs of a layer's experts for this worker's tokens, wherever the experts are."""

from collections.abc import Callable

import torch
from torch import Tensor

from torchloom_threadlet.experts.exchange import Counts, Members
from torchloom_threadlet.experts.router import Routing

Expert = Callable[[int, Tensor], Tensor]
"""Returns an own expert's outputs, from its place in the layer and its inputs."""


def computed(
    rows: Tensor, routing: Routing, counts: Counts, members: Members, expert: Expert
) -> Tensor:
    """Return the weighted sum of the experts' outputs, ``(tokens, hidden_size)``; collective.

    Parameters
    ----------
    rows : Tensor, (tokens, hidden_size)
    counts : list of list of int, (workers, experts)
        Tokens that each worker sends to each expert.
    """
    by_expert = routing.experts.reshape(-1).argsort(stable=True)
    parts = members.outgoing(counts)
    slots = torch.cat([by_expert[part] for of_worker in parts for part in of_worker])
    sent = [sum(part.stop - part.start for part in of_worker) for of_worker in parts]
    token = slots // routing.experts.shape[1]
    expected = members.incoming(counts)
    received = [sum(row) for row in expected]
    inputs = members.exchange(rows[token], sent, received)
    outputs = members.exchange(_applied(inputs, expected, members.own, expert), received, sent)
    weighted = outputs * routing.probabilities.reshape(-1)[slots].unsqueeze(1)
    return torch.zeros_like(rows).index_add(0, token, weighted)


def _applied(inputs: Tensor, expected: list[list[int]], own: list[int], expert: Expert) -> Tensor:
    """Return the own experts' outputs, in the order of the inputs: by source, then expert."""
    parts = torch.split(inputs, [length for row in expected for length in row])
    done: list[Tensor] = list(parts)
    for at_own, place in enumerate(own):
        mine = range(at_own, len(parts), len(own))
        rows = torch.cat([parts[at] for at in mine])
        if len(rows):
            outputs = expert(place, rows)
            lengths = [len(parts[at]) for at in mine]
            for at, part in zip(mine, torch.split(outputs, lengths), strict=True):
                done[at] = part
    # The empty first part has the backward pass reach the inputs on workers without a row.
    return torch.cat([inputs[:0], *done])
