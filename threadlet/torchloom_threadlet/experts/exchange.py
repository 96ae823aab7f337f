"""Tokens on their way to the experts' holders and back, over the group of one generation.

The workers tell each other their token counts first; from all counts each derives how many rows
it gets from whom. What the counts and the payload refer to is thus always the same assignment.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchloom_threadlet.experts.peers import Peers

Counts = list[list[int]]
"""Tokens that each worker sends to each expert, ``(workers, experts)``."""


class Members:
    """The workers of one generation, and the experts that each holds.

    Parameters
    ----------
    peers : Peers
        The workers.
    holders : sequence of sequence of int, (experts,)
        The ranks that hold each expert.
    """

    def __init__(self, peers: Peers, holders: Sequence[Sequence[int]]) -> None:
        self.peers, self.rank = peers, peers.rank
        self.holders = holders
        self.own = [expert for expert, ranks in enumerate(holders) if self.rank in ranks]
        self._anchor = torch.empty(0, dtype=torch.float32, device="cpu", requires_grad=True)

    def gather(self, counts: Tensor) -> Counts:
        """Return the counts of all workers, from this worker's, ``(experts,)`` of int64."""
        return [row.tolist() for row in self.peers.gather(counts)]

    def part(self, tokens: int, source: int, expert: int, holder: int) -> int:
        """Return how many of a worker's tokens for an expert go to one of its holders.

        The holders have equal parts; which ones have one token more depends on the source.
        """
        ranks = self.holders[expert]
        each, more = divmod(tokens, len(ranks))
        return each + ((ranks.index(holder) - source) % len(ranks) < more)

    def outgoing(self, counts: Counts) -> list[list[slice]]:
        """Return the parts of this worker's rows, sorted by expert, that each worker is sent."""
        parts: list[list[slice]] = [[] for _ in range(self.peers.size)]
        at = 0
        for expert, tokens in enumerate(counts[self.rank]):
            for holder in self.holders[expert]:
                length = self.part(tokens, self.rank, expert, holder)
                parts[holder].append(slice(at, at + length))
                at += length
        return parts

    def incoming(self, counts: Counts) -> list[list[int]]:
        """Return the rows to receive from each worker for each own expert, ``(workers, own)``."""
        return [
            [self.part(row[expert], source, expert, self.rank) for expert in self.own]
            for source, row in enumerate(counts)
        ]

    def exchange(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send rows to all workers, and return the rows that they send.

        The backward pass sends the gradients back. It does so on each worker, also on those
        without a row, without an expert, or whose rows need no gradient: all have to take part.

        Parameters
        ----------
        rows : Tensor, (sum of sent, width)
            Those for the first worker first.
        sent, received : list of int, (workers,)
        """
        # The anchor needs a gradient, and so has autograd run the backward pass everywhere.
        exchanged: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            self._anchor, rows, self.peers, sent, received
        )
        return exchanged


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        rows: Tensor,
        peers: Peers,
        sent: list[int],
        received: list[int],
    ) -> Tensor:
        ctx.peers, ctx.sent, ctx.received = peers, sent, received
        return peers.all_to_all(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None, None]:
        back = ctx.peers.all_to_all(gradients[0], ctx.received, ctx.sent)
        return None, back, None, None, None
