"""What the allreduces since the last look have sent and cost."""

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Figures:
    """Sums over this rank's allreduces.

    Attributes
    ----------
    sent_bytes : int
        Payload that went over the wire from here, computed.
    compress_s : float
        In coding and decoding.
    wire_s : float
        In collectives, the wait for slower peers included. Those that overlap each count.
    """

    sent_bytes: int = 0
    compress_s: float = 0.0
    wire_s: float = 0.0


class Meter:
    """Adds figures up, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = Figures()

    def add(self, sent_bytes: int = 0, compress_s: float = 0.0, wire_s: float = 0.0) -> None:
        """Count one allreduce, or a part of one."""
        with self._lock:
            now = self._sum
            self._sum = replace(
                now,
                sent_bytes=now.sent_bytes + sent_bytes,
                compress_s=now.compress_s + compress_s,
                wire_s=now.wire_s + wire_s,
            )

    def take(self) -> Figures:
        """Return the sums since the last call."""
        with self._lock:
            taken, self._sum = self._sum, Figures()
        return taken
