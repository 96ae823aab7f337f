"""The gaps between a group's heartbeats, and when a gap is too long."""

import time
from dataclasses import dataclass

_OVERDUE_S = 0.15
"""A Manager sends its next heartbeat 0.1 s after the answer to the last one."""

_SILENT_S = 1.0
_SILENT_TIMES = 5
"""A gap above this time, and above this multiple of the longest gap before, means that the group
shut its Manager down, which does not close the connection."""


@dataclass(slots=True)
class HeartbeatGaps:
    """The times between the answers to a group's heartbeats and its next heartbeats.

    ``since_s`` is the start of the present gap, if there is one; ``longest_s`` the longest before.
    """

    since_s: float | None = None
    longest_s: float | None = None

    def begin(self) -> None:
        """Start a gap."""
        self.since_s = time.monotonic()

    def end(self) -> None:
        """End the gap: the next heartbeat has arrived."""
        if self.since_s is not None:
            self.longest_s = max(self.longest_s or 0.0, time.monotonic() - self.since_s)
            self.since_s = None

    def exclude(self, asleep_s: float, now_s: float) -> None:
        """Exclude a time in which the lighthouse did not run from the present gap."""
        if self.since_s is not None:
            self.since_s = min(now_s, self.since_s + asleep_s)

    def is_due(self, now_s: float) -> bool:
        """Return whether the next heartbeat is overdue."""
        return self.since_s is not None and now_s - self.since_s > _OVERDUE_S

    def is_over(self, now_s: float) -> bool:
        """Return whether the gap is so long that no heartbeat is to be expected."""
        if self.since_s is None or self.longest_s is None:
            return False
        return now_s - self.since_s > max(_SILENT_S, _SILENT_TIMES * self.longest_s)
