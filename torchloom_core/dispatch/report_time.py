"""Up to when all that workers have reported was taken in: deadlines are judged by that time.

What a worker did in time may be on file and not read yet, where the Weaver was away or lags behind
the stream of reports. That time must not count against the worker.
"""

from torchloom_core.clock import SECOND_NS
from torchloom_core.wire.events import Backlog

_GRACE_NS = 5 * SECOND_NS
"""After a time in which the Weaver could not be reached workers need a moment to report."""


class ReportTime:
    """The time by which deadlines are judged."""

    def __init__(self) -> None:
        self._taken_until_ns: int | None = None
        self._caught_up_ns = 0

    def take(self, backlog: Backlog, now_ns: int) -> None:
        """Take note that the Weaver lags behind, or has caught up."""
        self._taken_until_ns = backlog.taken_until_ns
        if backlog.taken_until_ns is None:
            self._caught_up_ns = now_ns + _GRACE_NS

    def lags(self, now_ns: int) -> bool:
        """Return whether a worker may have reported what is not known yet."""
        return self._taken_until_ns is not None or now_ns <= self._caught_up_ns

    def is_past(self, moment_ns: int, now_ns: int) -> bool:
        """Return whether all that was reported until ``moment_ns`` would be known by now."""
        until_ns = self._taken_until_ns
        judged_ns = now_ns if until_ns is None else min(now_ns, until_ns)
        return judged_ns > max(moment_ns, self._caught_up_ns)
