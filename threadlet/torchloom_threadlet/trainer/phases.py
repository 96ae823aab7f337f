"""What the trainer is at: computing, waiting for others, or in a phase that somebody has named.

Waits are stamped by an adapter in whichever thread waits, named phases by the script
(``loom.phase``) or a framework's hooks; both are read by the link's thread.
"""

import threading
import time

from torchloom_core.wire.limits import MAX_SHORT_TEXT
from torchloom_threadlet.cleaning import text
from torchloom_threadlet.ipc import COMPUTE, NamedPhase, Phase

_TOLD_AFTER_NS = 100_000_000
_LONGEST_PHASE_S = 1e6


class Phases:
    """The phase of one trainer, and how long it has waited.

    Attributes
    ----------
    waited_ns : int
        Time spent on waits that are over, all together.
    quorum_id : int
        The quorum that it is a member of, -1 before the first.
    """

    def __init__(self) -> None:
        self.waited_ns = 0
        self.quorum_id = -1
        self._lock = threading.Lock()
        self._waits: list[str] = []
        self._named: list[NamedPhase] = []
        self._since_ns = 0
        self._computes_since_ns = 0

    def begin(self, what: str) -> None:
        """Stamp that a wait begins; of waits within or beside each other the time counts once."""
        with self._lock:
            if not self._waits:
                self._since_ns = time.monotonic_ns()
            self._waits.append(what)

    def end(self, what: str) -> None:
        """Stamp that it is over, however it ended."""
        with self._lock:
            self._waits.remove(what)
            if not self._waits:
                self._computes_since_ns = time.monotonic_ns()
                self.waited_ns += self._computes_since_ns - self._since_ns

    def enter(self, name: str, at_most_s: float) -> NamedPhase:
        """Begin a named phase, and return what ends it.

        Raises
        ------
        ValueError
            If the bound is no number of seconds above 0.
        """
        if not (isinstance(at_most_s, int | float) and at_most_s > 0):
            raise ValueError(f"phase {name!r}: need at_most_s > 0, in seconds, was {at_most_s!r}")
        now_ns = time.monotonic_ns()
        until_ns = now_ns + round(min(at_most_s, _LONGEST_PHASE_S) * 1e9)
        phase = NamedPhase(name=text(name, MAX_SHORT_TEXT), since_ns=now_ns, until_ns=until_ns)
        with self._lock:
            self._named.append(phase)
        return phase

    def leave(self, phase: NamedPhase) -> None:
        """End a named phase."""
        with self._lock:
            self._named.remove(phase)

    def named(self) -> NamedPhase | None:
        """Return the named phase now; of nested ones the one with the latest end."""
        with self._lock:
            return max(self._named, key=lambda phase: phase.until_ns, default=None)

    def present(self) -> Phase | None:
        """Return the phase now, None where nobody stamps any.

        A wait counts once it is longer than most collectives are: a tenth of a second.
        """
        with self._lock:
            waits, since_ns = self._waits, self._since_ns
            if not since_ns:
                return None
            if waits and time.monotonic_ns() - since_ns > _TOLD_AFTER_NS:
                return Phase(name=waits[-1], since_ns=since_ns, quorum_id=self.quorum_id)
            since_ns = self._computes_since_ns or since_ns
            return Phase(name=COMPUTE, since_ns=since_ns, quorum_id=self.quorum_id)
