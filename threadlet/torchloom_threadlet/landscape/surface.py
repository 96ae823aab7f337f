"""The loss at weights that lie somewhere else, and the weights put back to the bit afterwards."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

Direction = Sequence[Tensor]
"""A tensor for each parameter, of its shape."""


class Surface:
    """The loss of a model as a function of where its weights are.

    Parameters
    ----------
    parameters : iterable of Tensor
        The weights, which are moved in place.
    loss : callable
        Returns the loss on the same batch each time, of the model as it is then. It must not
        depend on anything else that changes: put dropout and batch statistics to rest before.
    """

    def __init__(self, parameters: Iterable[Tensor], loss: Callable[[], float | Tensor]) -> None:
        self.parameters = tuple(parameters)
        self._loss = loss

    def at(self, *moves: tuple[Direction, float]) -> float:
        """Return the loss at the weights plus so much of each direction."""
        with self._moved(moves), torch.no_grad():
            return float(self._loss())

    def base(self) -> float:
        """Return the loss at the weights as they are.

        Raises
        ------
        ValueError
            If it is no number, or another when it is asked for a second time.
        """
        first, second = self.at(), self.at()
        for loss in (first, second):
            if not math.isfinite(loss):
                raise ValueError(f"need a loss that is a number, was {loss}")
        if first != second:
            raise ValueError(
                f"need a loss that is the same twice at one place, was {first!r} and {second!r}: "
                "pin its batch, and what it draws at random"
            )
        return first

    @contextmanager
    def _moved(self, moves: Sequence[tuple[Direction, float]]) -> Iterator[None]:
        moves = [(direction, share) for direction, share in moves if share != 0.0]
        if not moves:
            yield
            return
        # What was added and is taken off again is not what it was before, to the bit.
        kept = [parameter.detach().clone() for parameter in self.parameters]
        try:
            with torch.no_grad():
                for direction, share in moves:
                    for parameter, part in zip(self.parameters, direction, strict=True):
                        parameter.add_(part, alpha=share)
            yield
        finally:
            with torch.no_grad():
                for parameter, before in zip(self.parameters, kept, strict=True):
                    parameter.copy_(before)


def inner(one: Direction, other: Direction) -> float:
    """Return the inner product of two directions, in double precision."""
    parts = zip(one, other, strict=True)
    return sum(float(torch.sum(a.double() * b.double())) for a, b in parts)


def norm(direction: Direction) -> float:
    """Return a direction's length."""
    return float(inner(direction, direction) ** 0.5)
