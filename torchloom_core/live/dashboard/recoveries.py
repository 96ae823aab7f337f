"""The recoveries that pages show: computed at most once a second, for all pages."""

from typing import Any

import msgspec

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.trajectory.recoveries import Recoveries

MOST_SHOWN = 5


class RecoveriesShown:
    """The newest recoveries, as pages show them.

    ``rows`` has the newest first, ``version`` changes with them.
    """

    def __init__(self) -> None:
        self.version = 0
        self.rows: list[dict[str, Any]] = []
        self._recoveries = Recoveries()
        self._computed = (0, 0)

    def take(self, message: object, now_s: float) -> None:
        """Take a message of a worker, or a command's status."""
        self._recoveries.take(message, round(now_s * SECOND_NS))

    def compute(self, now_s: float) -> None:
        """Compute the rows anew, if anything that they show may have changed."""
        is_open = any(row["phase"] for row in self.rows)
        key = self._recoveries.version, int(now_s) if is_open else 0
        if key == self._computed:
            return
        self._computed = key
        found = list(self._recoveries.found(round(now_s * SECOND_NS)))[-MOST_SHOWN:]
        rows = [msgspec.to_builtins(one) for one in reversed(found)]
        if rows != self.rows:
            self.rows = rows
            self.version += 1
