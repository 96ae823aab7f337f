"""The loss at other weights, and in a plane of them, first coarse and then finer.

The weights are restored afterwards, to the bit. Any prefix of a plane is a map.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

Direction = Sequence[Tensor]
"""A tensor for each parameter, of its shape."""


class Surface:
    """The loss of a model as a function of its weights.

    ``parameters``: the weights, which are changed in place.
    ``loss``: returns the loss of the present model, on the same batch each time. It must not depend
    on anything else that changes: turn off dropout and batch statistics first.
    """

    def __init__(self, parameters: Iterable[Tensor], loss: Callable[[], float | Tensor]) -> None:
        self.parameters = tuple(parameters)
        self._loss = loss

    def at(self, *moves: tuple[Direction, float]) -> float:
        """Return the loss at the weights plus multiples of directions."""
        with self._moved(moves), torch.no_grad():
            return float(self._loss())

    def base(self) -> float:
        """Return the loss at the present weights.

        Raises ValueError if it is no number, or differs at a second evaluation.
        """
        first, second = self.at(), self.at()
        for loss in (first, second):
            if not math.isfinite(loss):
                raise ValueError(f"need a loss that is a number, was {loss}")
        if first != second:
            raise ValueError(
                f"need the same loss twice at the same weights, was {first!r} and {second!r}: "
                "fix its batch and its random numbers"
            )
        return first

    @contextmanager
    def _moved(self, moves: Sequence[tuple[Direction, float]]) -> Iterator[None]:
        moves = [(direction, share) for direction, share in moves if share != 0.0]
        if not moves:
            yield
            return
        # Adding and subtracting does not restore the weights to the bit.
        before = [parameter.detach().clone() for parameter in self.parameters]
        try:
            with torch.no_grad():
                for direction, share in moves:
                    for parameter, part in zip(self.parameters, direction, strict=True):
                        parameter.add_(part, alpha=share)
            yield
        finally:
            with torch.no_grad():
                for parameter, saved in zip(self.parameters, before, strict=True):
                    parameter.copy_(saved)


def inner(one: Direction, other: Direction) -> float:
    """Return the inner product of two directions, in double precision."""
    parts = zip(one, other, strict=True)
    return sum(float(torch.sum(a.double() * b.double())) for a, b in parts)


def norm(direction: Direction) -> float:
    """Return a direction's length."""
    return float(inner(direction, direction) ** 0.5)


class Cell(NamedTuple):
    """One point of a plane: its position in the grid, and the loss there."""

    row: int
    column: int
    loss: float


def shares(points: int, reach: float) -> list[float]:
    """Return the positions of a grid's points along a direction, from -reach to reach."""
    if points < 2:
        raise ValueError(f"need at least 2 points, was {points}")
    return [reach * (2 * index / (points - 1) - 1) for index in range(points)]


def in_rounds(points: int) -> Iterator[tuple[int, int]]:
    """Yield each position of a square grid once: every 16th row and column first, then between.

    Examples
    --------
    >>> list(in_rounds(3))
    [(0, 0), (0, 2), (2, 0), (2, 2), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
    """
    stride = 1
    while 2 * stride < points:
        stride *= 2
    seen = 0
    while stride:
        for row in range(0, points, stride):
            for column in range(0, points, stride):
                if seen and row % (2 * stride) == 0 and column % (2 * stride) == 0:
                    continue
                yield row, column
        seen, stride = stride, stride // 2


def coarse_first(points: int) -> list[int]:
    """Return the positions of a line, in the order of a grid's columns.

    Examples
    --------
    >>> coarse_first(5)
    [0, 4, 2, 1, 3]
    """
    return list(dict.fromkeys(column for _, column in in_rounds(points)))


def plane(
    surface: Surface,
    first: Direction,
    second: Direction,
    along: Sequence[float],
    places: Iterator[tuple[int, int]],
) -> Iterator[Cell]:
    """Yield the loss at some positions of a plane, one by one.

    ``along``: shares of ``first`` by row, and of ``second`` by column.
    """
    for row, column in places:
        loss = surface.at((first, along[row]), (second, along[column]))
        yield Cell(row, column, loss)
