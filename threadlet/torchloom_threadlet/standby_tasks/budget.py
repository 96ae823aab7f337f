"""How often and how long a standby may compute a loss; a standby task is ended by this."""

import time
from collections.abc import Callable

from torch import Tensor


class Spent(Exception):
    """Nothing more is to be computed, and why."""


class Budget:
    """A function of the script's that returns a loss, until enough was seen of it.

    Attributes
    ----------
    points : int
        How often it was called.

    Parameters
    ----------
    loss : callable
        The script's own.
    most : int
        How often it may be called.
    seconds : float
        How long from now on.
    is_asked : callable
        Says whether the standby was asked for something else meanwhile.
    """

    def __init__(
        self,
        loss: Callable[[], float | Tensor],
        most: int,
        seconds: float,
        is_asked: Callable[[], bool],
    ) -> None:
        self.points = 0
        self._loss = loss
        self._most = most
        self._seconds = seconds
        self._is_asked = is_asked
        self._began_s = time.monotonic()

    def __call__(self) -> float | Tensor:
        """Return the next loss; raises as :meth:`check`."""
        self.check()
        self.points += 1
        try:
            return self._loss()
        except StopIteration:  # within a generator it would not be known for what it is
            raise ValueError(
                "need a loss each time, was StopIteration: its data is used up"
            ) from None

    @property
    def spent_s(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began_s

    def check(self) -> None:
        """Raise Spent if there is nothing left of the points or the time, or others ask."""
        if self._is_asked():
            raise Spent("it was called off, or the standby was asked for something else")
        if self.points >= self._most:
            raise Spent(f"its {self._most} points were used up")
        if self.spent_s >= self._seconds:
            raise Spent(f"its {self._seconds:.3g} s were used up")
