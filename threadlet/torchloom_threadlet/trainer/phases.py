"""What the trainer is at: computing, or waiting for others, for what, since when.

Stamped by an adapter in whichever thread waits, read by the link's thread.
"""

import threading
import time

from torchloom_threadlet.ipc import COMPUTE, Phase

_TOLD_AFTER_NS = 100_000_000


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
