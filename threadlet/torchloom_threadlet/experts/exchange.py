"""Tokens on their way to the experts' holders and back, over the group of one generation.

The workers tell each other their token counts first; from all counts each derives how many rows
it gets from whom. What the counts and the payload refer to is thus always the same assignment.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

Counts = list[list[int]]
"""Tokens that each worker sends to each expert, ``(workers, experts)``."""


class Members:
    """The workers of one generation, and the experts that each holds.

    Parameters
    ----------
    group : ProcessGroup, optional
        Its ranks are the workers; None for one worker alone.
    holders : sequence of sequence of int, (experts,)
        The ranks that hold each expert.
    """

    def __init__(self, group: ProcessGroup | None, holders: Sequence[Sequence[int]]) -> None:
        self.group = group
        self.rank, self.size = (group.rank(), group.size()) if group is not None else (0, 1)
        self.holders = holders
        self.own = [expert for expert, ranks in enumerate(holders) if self.rank in ranks]
        self._anchor = torch.empty(0, requires_grad=True)

    def gather(self, counts: Tensor) -> Counts:
        """Return the counts of all workers, from this worker's, ``(experts,)`` of int64."""
        if self.group is None:
            return [counts.tolist()]
        gathered = [torch.empty_like(counts) for _ in range(self.size)]
        self.group.allgather([gathered], [counts]).wait()
        return [row.tolist() for row in gathered]

    def part(self, tokens: int, source: int, expert: int, holder: int) -> int:
        """Return how many of a worker's tokens for an expert go to one of its holders.

        The holders have equal parts; which ones have one token more depends on the source.
        """
        ranks = self.holders[expert]
        each, more = divmod(tokens, len(ranks))
        return each + ((ranks.index(holder) - source) % len(ranks) < more)

    def outgoing(self, counts: Counts) -> list[list[slice]]:
        """Return the parts of this worker's rows, sorted by expert, that each worker is sent."""
        parts: list[list[slice]] = [[] for _ in range(self.size)]
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
        if self.group is None:
            return rows
        # The anchor needs a gradient, and so has autograd run the backward pass everywhere.
        exchanged: Tensor = _AllToAll.apply(  # type: ignore[no-untyped-call]
            self._anchor, rows, self.group, sent, received
        )
        return exchanged


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        rows: Tensor,
        group: ProcessGroup,
        sent: list[int],
        received: list[int],
    ) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _all_to_all(rows, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, None, None, None]:
        back = _all_to_all(gradients[0], ctx.group, ctx.received, ctx.sent)
        return None, back, None, None, None


def _all_to_all(rows: Tensor, group: ProcessGroup, sent: list[int], received: list[int]) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    group.alltoall_base(output, rows.contiguous(), received, sent).wait()
    return output
