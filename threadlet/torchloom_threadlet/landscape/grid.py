"""A plane of losses, first coarse and then finer, so that any prefix is a map."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchloom_threadlet.landscape.surface import Direction, Surface


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
