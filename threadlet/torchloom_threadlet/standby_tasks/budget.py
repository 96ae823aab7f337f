"""Limits how often a standby task may compute a loss, and how long."""

import time
from collections.abc import Callable

from torch import Tensor


class BudgetUsed(Exception):
    """The standby task ends, and why."""


class Budget:
    """A script's function that returns a loss, within limits.

    ``seconds``: the time limit, from now on.
    ``should_stop``: returns whether another command arrived meanwhile.
    """

    def __init__(
        self,
        loss: Callable[[], float | Tensor],
        most: int,
        seconds: float,
        should_stop: Callable[[], bool],
    ) -> None:
        self.points = 0
        self._loss = loss
        self._most = most
        self._seconds = seconds
        self._should_stop = should_stop
        self._began_s = time.monotonic()

    def __call__(self) -> float | Tensor:
        """Return the next loss; raises as :meth:`check`."""
        self.check()
        self.points += 1
        try:
            return self._loss()
        except StopIteration:  # a generator would swallow it
            raise ValueError(
                "need a loss each time, was StopIteration: the script's data is exhausted"
            ) from None

    @property
    def used_s(self) -> float:
        """The time since the start, in seconds."""
        return time.monotonic() - self._began_s

    def check(self) -> None:
        """Raise BudgetUsed if the points or the time are used up, or another command arrived."""
        if self._should_stop():
            raise BudgetUsed("it was cancelled, or the standby got another command")
        if self.points >= self._most:
            raise BudgetUsed(f"the limit of {self._most} points was reached")
        if self.used_s >= self._seconds:
            raise BudgetUsed(f"the limit of {self._seconds:.3g} s was reached")
