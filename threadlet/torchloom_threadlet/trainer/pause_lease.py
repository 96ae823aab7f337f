"""How long a pause lasts: pure, and what keeps a worker from staying paused without a Weaver.

A pause is provisional until the Weaver confirms it, and is on a lease afterwards: a worker that
loses its Weaver, broker or sidecar resumes by itself. The link's
thread calls :meth:`PauseLease.update`, the training thread the rest; the caller holds a lock.
"""

import math
from collections import deque

from torchloom_core.wire.messages import PauseState

PROVISIONAL_S = 1.5
"""How long a worker waits for the Weaver to confirm its pause."""

LEASE_S = 3.0
"""How long each confirmation keeps it paused."""

_REMEMBERED = 16

UNCONFIRMED = "no Weaver confirmed it"
LAPSED = "the Weaver was silent for 3 s"
TOO_LONG = "it reached the longest pause that the framework allows"


class PauseLease:
    """The present pause of this worker, or its last.

    ``is_held``: whether it is a suspension, which only a resume ends.
    ``longest_s``: the longest possible pause; infinite where no timeout of the framework's limits
    it.
    """

    def __init__(self) -> None:
        self.longest_s = math.inf
        self.cause = ""
        self.is_held = False
        self._until_s = self._end_s = 0.0
        self._why = UNCONFIRMED
        self._over: deque[str] = deque(maxlen=_REMEMBERED)

    def begin(self, cause: str, now_s: float) -> None:
        """Begin a pause at ``now_s``, monotonic."""
        self.cause = cause
        self._why = UNCONFIRMED
        self._until_s = now_s + PROVISIONAL_S
        self._end_s = now_s + self.longest_s

    def hold(self, cause: str) -> None:
        """Begin a suspension, which no silence of the Weaver ends."""
        self.cause, self.is_held = cause, True
        self._until_s = self._end_s = math.inf

    def release(self) -> None:
        """End a suspension."""
        self.cause, self.is_held = "", False
        self._until_s = self._end_s = 0.0

    def update(self, state: PauseState, now_s: float) -> None:
        """Apply the Weaver's report on the pause in force."""
        if state.over:
            self._over.append(state.over)
        if not self.cause or self.is_held:
            return
        if state.verdict == self.cause:
            self._until_s, self._why = now_s + LEASE_S, LAPSED
        else:
            self._until_s, self._why = now_s, ""

    def is_over(self, cause: str) -> bool:
        """Return whether this verdict's pause was cancelled before it was carried out."""
        return cause in self._over

    def left_s(self, now_s: float) -> float:
        """Return the seconds left to wait, at most 0 when the pause has ended."""
        return min(self._until_s, self._end_s) - now_s

    def end(self, now_s: float) -> str:
        """End the pause; return why it ended by itself, "" if the Weaver ended it."""
        self.cause = ""
        return TOO_LONG if now_s >= self._end_s else self._why
