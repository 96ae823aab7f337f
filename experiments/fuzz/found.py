"""The messages that a part of the fuzz test sent, and its findings."""

from collections.abc import Callable
from dataclasses import dataclass, field

Show = Callable[[int], None]
"""Called with the number sent so far."""

_KEPT = 300


@dataclass
class Found:
    """Counts of one part; ``faults`` holds the first of what was found."""

    part: str
    sent: int = 0
    deaths: int = 0
    hangs: int = 0
    tracebacks: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def bad(self) -> int:
        """Number of findings."""
        return self.deaths + self.hangs + self.tracebacks

    def death(self, text: str) -> None:
        """Count a process that ended."""
        self.deaths += 1
        self._keep(f"death: {text}")

    def hang(self, text: str) -> None:
        """Count what did not answer in time."""
        self.hangs += 1
        self._keep(f"hang: {text}")

    def traceback(self, text: str) -> None:
        """Count an error without a message for users."""
        self.tracebacks += 1
        self._keep(f"traceback: {text}")

    def look_for_tracebacks(self, log: str) -> None:
        """Count the tracebacks in a log, and keep the line that each ends with."""
        for part in log.split("Traceback (most recent call last)")[1:]:
            ends = [line for line in part.splitlines()[1:] if line[:1].strip()]
            self.traceback(ends[0] if ends else "?")

    def _keep(self, text: str) -> None:
        if len(self.faults) < _KEPT:
            self.faults.append(text[:2000])
