"""A tensor's matrices: itself, a model's parameters in a flat bucket, or a square."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """A range of a flat tensor, used as a matrix; the last row may not be full.

    ``start``, ``numbers``: its start and its length.
    ``rows``, ``columns``: the matrix's; a vector has one row.
    """

    start: int
    numbers: int
    rows: int
    columns: int

    @property
    def stop(self) -> int:
        """The start of the next piece."""
        return self.start + self.numbers


class Pieces:
    """Finds the matrices in the tensors that DDP reduces.

    ``parameters``: the model's, in its own order; DDP's buckets contain consecutive ones.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._shapes = [tuple(each.shape) for each in parameters if each.requires_grad]
        self._known: dict[tuple[int, ...], list[Piece]] = {}

    def of(self, tensor: Tensor) -> list[Piece]:
        """Return the pieces of ``tensor``, in order, without a gap."""
        shape = tuple(tensor.shape)
        if shape not in self._known:
            self._known[shape] = self._cut(shape)
        return self._known[shape]

    def _cut(self, shape: tuple[int, ...]) -> list[Piece]:
        if len(shape) > 1:
            return _in_a_row([shape])
        (numbers,) = shape
        if found := self._run_of(numbers):
            return _in_a_row(found)
        side = math.isqrt(numbers - 1) + 1
        return [Piece(0, numbers, side, side)]

    def _run_of(self, numbers: int) -> Sequence[tuple[int, ...]]:
        """Return the last consecutive parameters with this many numbers in total; none if none has.

        If another range has the same length, the matrices are worse, but the sum is still correct.
        """
        first, total = len(self._shapes), 0
        for last in range(len(self._shapes), 0, -1):
            while total < numbers and first > 0:
                first -= 1
                total += math.prod(self._shapes[first])
            if total == numbers:
                return self._shapes[first:last]
            total -= math.prod(self._shapes[last - 1])
        return ()


def _in_a_row(shapes: Sequence[tuple[int, ...]]) -> list[Piece]:
    pieces, start = [], 0
    for shape in shapes:
        numbers = math.prod(shape)
        rows = shape[0] if len(shape) > 1 else 1
        pieces.append(Piece(start, numbers, rows, numbers // rows))
        start += numbers
    return pieces
