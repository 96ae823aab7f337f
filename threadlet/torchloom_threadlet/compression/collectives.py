"""The collectives of a codec, and how many bytes each costs a rank to send.

A codec does no I/O: its ``reduce`` is a generator that yields one of these, receives the answer,
and returns the reduced tensor. A process group drives it over the network; :func:`reduce_together`
drives all ranks in one process.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Exchange:
    """Row ``i`` goes to rank ``i``; row ``i`` of the answer is from rank ``i``.

    ``rows``: contiguous bytes, of shape (ranks, bytes).
    """

    rows: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends: a row to each other rank."""
        return self.rows.numel() // ranks * (ranks - 1)


@dataclass(frozen=True)
class Gather:
    """The answer is (ranks, bytes): the rows of all ranks, in their order.

    ``row``: contiguous bytes, of shape (bytes,).
    """

    row: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends in a ring: all rows but one."""
        return self.row.numel() * (ranks - 1)


@dataclass(frozen=True)
class Sum:
    """The answer is the sum over the ranks, bitwise the same on all.

    ``tensor``: contiguous floats, which the sum may overwrite.
    """

    tensor: Tensor

    def sent_bytes(self, ranks: int) -> int:
        """Return the bytes that this rank sends in a ring, reduced and then gathered."""
        return ring_bytes(self.tensor, ranks)


Collective = Exchange | Gather | Sum
Reduction = Generator[Collective, Tensor, _Result]


@dataclass(frozen=True)
class Peers:
    """A rank among the ranks that it reduces with."""

    rank: int
    ranks: int


def ring_bytes(tensor: Tensor, ranks: int) -> int:
    """Return the bytes that a rank sends in a ring allreduce of ``tensor``."""
    return 2 * (ranks - 1) * tensor.numel() * tensor.element_size() // ranks


def reduce_together(reductions: Sequence[Reduction[_Result]]) -> list[_Result]:
    """Drive one reduction per rank, in lockstep, and return their results."""
    ranks, results = len(reductions), list[_Result]()
    answers: list[Tensor | None] = [None] * ranks
    while not results:
        collectives = []
        for reduction, answer in zip(reductions, answers, strict=True):
            try:
                collectives.append(next(reduction) if answer is None else reduction.send(answer))
            except StopIteration as stop:
                results.append(stop.value)
        if len(collectives) != ranks and len(results) != ranks:
            raise ValueError(f"need a collective of all {ranks} ranks, was of {len(collectives)}")
        answers = _answers(collectives)
    return results


def _answers(collectives: Sequence[Collective]) -> list[Tensor | None]:
    ranks = range(len(collectives))
    exchanged = [each.rows for each in collectives if isinstance(each, Exchange)]
    gathered = [each.row for each in collectives if isinstance(each, Gather)]
    summed = [each.tensor for each in collectives if isinstance(each, Sum)]
    if exchanged:
        return [torch.stack([rows[rank] for rows in exchanged]) for rank in ranks]
    if gathered:
        return [torch.stack(gathered) for _ in ranks]
    return [torch.stack(summed).sum(0) for _ in ranks] if summed else []
