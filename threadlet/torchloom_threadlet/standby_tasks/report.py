"""Sends a standby task's results: losses a few at a time, anything else at once and in order."""

import time
from collections.abc import Callable
from typing import Any

from torchloom_core.wire.standby_task import MOST, MOST_AT_ONCE, End, Loss
from torchloom_threadlet.standby_tasks.budget import Budget
from torchloom_threadlet.trainer.standby_tasks import Send

_EVERY_S = 0.5


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
