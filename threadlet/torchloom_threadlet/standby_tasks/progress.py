"""How far a standby task may go, and what it sends: losses a few at a time, the rest at once."""

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchloom_core.wire.standby_task import MOST, MOST_AT_ONCE, End, Loss
from torchloom_threadlet.trainer.standby_tasks import Send

_EVERY_S = 0.5


class BudgetUsed(Exception):
    """The standby task ends, and why."""


class Budget:
    """A script's function that returns a loss, within limits.

    ``seconds``: the time limit, from now on.
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


class Report:
    """The results of one task, of which ``whole`` points are expected."""

    def __init__(self, budget: Budget, whole: int, send: Send) -> None:
        self._budget = budget
        self._whole = whole
        self._send = send
        self._make: Callable[[tuple[Any, ...]], Any] = tuple
        self._gathered: list[Any] = []
        self._sent_s = time.monotonic()

    def gather(self, make: Callable[[tuple[Any, ...]], Any], loss: Any) -> None:
        """Take a loss for the next piece that ``make`` returns of several."""
        if make is not self._make:
            self.flush()
            self._make = make
        self._gathered.append(loss)
        is_late = time.monotonic() - self._sent_s >= _EVERY_S
        if is_late or len(self._gathered) >= MOST_AT_ONCE:
            self.flush()

    def send(self, piece: Any) -> None:
        """Send a piece, after the losses before it."""
        self.flush()
        self._send(self._budget.points, self._whole, piece)

    def flush(self) -> None:
        """Send the gathered losses."""
        self._sent_s = time.monotonic()
        gathered, self._gathered = self._gathered, []
        if gathered:
            self.send(self._make(tuple(gathered)))

    def end(self, of: str, why: str) -> str:
        """Send the end, and return how many ``of`` what were done, how long it took, and why."""
        end = End(points=self._budget.points, seconds=self._budget.used_s, why=why)
        self.send(end)
        return f"{end.points} {of} in {end.seconds:.1f} s" + (f": {why}" if why else "")


def finite(number: float) -> Loss:
    """Return the number, None if a message cannot contain it."""
    return number if abs(number) <= MOST else None
