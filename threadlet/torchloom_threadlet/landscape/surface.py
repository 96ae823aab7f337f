"""The loss at other weights; the weights are restored afterwards, to the bit."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

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
