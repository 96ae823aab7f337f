"""How often a standby task sends its results: soon, in pieces of a bounded size."""

import time

from torchloom_core.wire.standby_task import MOST, MOST_AT_ONCE, Loss

_EVERY_S = 0.5


class Pace:
    """Remembers when the last piece was sent."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Record that everything was sent now."""
        self._sent_s = time.monotonic()

    def is_due(self, points: int) -> bool:
        """Return whether to send this many points now."""
        return points >= MOST_AT_ONCE or time.monotonic() - self._sent_s >= _EVERY_S


def finite(number: float) -> Loss:
    """Return the number, None if a message cannot contain it."""
    return number if abs(number) <= MOST else None
