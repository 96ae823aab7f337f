"""How often a standby task tells what it has found: soon, in pieces of a bounded size."""

import time

from torchloom_core.wire.standby_task import MOST, MOST_AT_ONCE, Loss

_EVERY_S = 0.5


class Pace:
    """Knows when a piece was told last."""

    def __init__(self) -> None:
        self.told()

    def told(self) -> None:
        """Take note that all was told now."""
        self._told_s = time.monotonic()

    def is_due(self, points: int) -> bool:
        """Say whether so many points are to be told now."""
        return points >= MOST_AT_ONCE or time.monotonic() - self._told_s >= _EVERY_S


def finite(number: float) -> Loss:
    """Return the number, None where it is none that a message can have."""
    return number if abs(number) <= MOST else None
