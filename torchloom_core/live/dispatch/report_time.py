"""The time up to which all reports of workers were read: deadlines are checked against it.

A report may be stored in the stream and not read yet, because the Weaver was down or lags behind.
That delay must not count against the worker.
"""

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.events import Backlog

_GRACE_NS = 5 * SECOND_NS
"""Workers need a moment to report after the Weaver was unreachable."""


class ReportTime:
    """The time against which deadlines are checked."""

    def __init__(self) -> None:
        self._taken_until_ns: int | None = None
        self._caught_up_ns = 0

    def take(self, backlog: Backlog, now_ns: int) -> None:
        """Record that the Weaver lags behind, or has caught up."""
        self._taken_until_ns = backlog.taken_until_ns
        if backlog.taken_until_ns is None:
            self._caught_up_ns = now_ns + _GRACE_NS

    def lags(self, now_ns: int) -> bool:
        """Return whether reports may be unread."""
        return self._taken_until_ns is not None or now_ns <= self._caught_up_ns

    def is_past(self, moment_ns: int, now_ns: int) -> bool:
        """Return whether all reports until ``moment_ns`` were read."""
        until_ns = self._taken_until_ns
        judged_ns = now_ns if until_ns is None else min(now_ns, until_ns)
        return judged_ns > max(moment_ns, self._caught_up_ns)
