"""How long a pause lasts: pure, and the reason why nobody stays paused because of us.

A pause is provisional until the Weaver says that it holds it, and is on a lease afterwards: who
hears nothing goes on, be it the Weaver, the broker or the sidecar that is gone. The link's
thread calls :meth:`PauseLease.hear`, the training thread the rest; the caller holds a lock.
"""

import math
from collections import deque

from torchloom_core.wire.messages import Hold

PROVISIONAL_S = 1.5
"""How long a worker waits to hear that its pause is held."""

HELD_S = 3.0
"""How long it then waits from one word of the Weaver's to the next."""

_REMEMBERED = 16

UNHELD = "no Weaver held it"
LAPSED = "no Weaver was heard of for 3 s"
TOO_LONG = "a pause may last no longer here"


class PauseLease:
    """The pause that this worker is in, or was last in.

    Attributes
    ----------
    longest_s : float
        How long a pause may last at all; infinite where nothing of the framework's runs out.
    cause : str
        The verdict whose Pause was obeyed.
    """

    def __init__(self) -> None:
        self.longest_s = math.inf
        self.cause = ""
        self._until_s = self._end_s = 0.0
        self._why = UNHELD
        self._over: deque[str] = deque(maxlen=_REMEMBERED)

    def begin(self, cause: str, now_s: float) -> None:
        """Begin a pause at ``now_s``, monotonic."""
        self.cause = cause
        self._why = UNHELD
        self._until_s = now_s + PROVISIONAL_S
        self._end_s = now_s + self.longest_s

    def hear(self, hold: Hold, now_s: float) -> None:
        """Take what the Weaver says of the pause in force."""
        if hold.over:
            self._over.append(hold.over)
        if not self.cause:
            return
        if hold.hold == self.cause:
            self._until_s, self._why = now_s + HELD_S, LAPSED
        else:
            self._until_s, self._why = now_s, ""

    def is_over(self, cause: str) -> bool:
        """Say whether the pause of this verdict was called off before it was obeyed."""
        return cause in self._over

    def left_s(self, now_s: float) -> float:
        """Return how long to wait still, at most 0 when the pause has ended."""
        return min(self._until_s, self._end_s) - now_s

    def end(self, now_s: float) -> str:
        """End the pause; return why it ended by itself, empty if the Weaver ended it."""
        self.cause = ""
        return TOO_LONG if now_s >= self._end_s else self._why
