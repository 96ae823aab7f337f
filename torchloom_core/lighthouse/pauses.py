"""How long a group is silent between two of its heartbeats, and when that is too long."""

import time
from dataclasses import dataclass

_OVERDUE_S = 0.15
"""A Manager's next heartbeat comes 0.1 s after the answer to the last one."""

_SILENT_S = 1.0
_SILENT_TIMES = 5
"""So long, and so many times as long as ever before, is nobody silent between two heartbeats who
has not shut its Manager down: that alone leaves the connection as it is."""


@dataclass(slots=True)
class Pauses:
    """The times between a group's heartbeats' answers and the next heartbeats.

    ``since_s`` is when the present one began, if there is one; ``longest_s`` is that of the others.
    """

    since_s: float | None = None
    longest_s: float | None = None

    def begin(self) -> None:
        """Begin one."""
        self.since_s = time.monotonic()

    def end(self) -> None:
        """End it: the next heartbeat has come."""
        if self.since_s is not None:
            self.longest_s = max(self.longest_s or 0.0, time.monotonic() - self.since_s)
            self.since_s = None

    def overlook(self, asleep_s: float, now_s: float) -> None:
        """Count a time in which the lighthouse did not run for no part of the present one."""
        if self.since_s is not None:
            self.since_s = min(now_s, self.since_s + asleep_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether the next heartbeat should have come."""
        return self.since_s is not None and now_s - self.since_s > _OVERDUE_S

    def is_over(self, now_s: float) -> bool:
        """Return whether no heartbeat comes any more."""
        if self.since_s is None or self.longest_s is None:
            return False
        return now_s - self.since_s > max(_SILENT_S, _SILENT_TIMES * self.longest_s)
