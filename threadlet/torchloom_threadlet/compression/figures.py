"""What the allreduces since the last look have sent and cost, together and bucket by bucket."""

import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

_BUCKETS_TOLD = 8
_NAMES = tuple(
    (f"bucket_{place}_bytes", f"bucket_{place}_compress_s", f"bucket_{place}_wire_s")
    for place in range(_BUCKETS_TOLD)
)


@dataclass(frozen=True)
class Cost:
    """What one reduction has cost this rank.

    Attributes
    ----------
    sent_bytes : int
        Payload that went over the wire from here, computed.
    compress_s : float
        In coding and decoding.
    wire_s : float
        In collectives, the wait for slower peers included.
    """

    sent_bytes: int = 0
    compress_s: float = 0.0
    wire_s: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            self.sent_bytes + other.sent_bytes,
            self.compress_s + other.compress_s,
            self.wire_s + other.wire_s,
        )


@dataclass(frozen=True)
class Figures:
    """Sums over this rank's allreduces.

    Attributes
    ----------
    cost : Cost
        Of all of them together; those that overlap each count.
    gradient_bytes : int
        What there was to reduce, in its own type.
    reductions : int
        How many began.
    overlap_s : float
        In which one of them at least was under way, and nobody waited for any.
    buckets : dict of int to Cost
        By place among the reductions, from 0. One that ends after a look counts with the next.
    """

    cost: Cost = Cost()
    gradient_bytes: int = 0
    reductions: int = 0
    overlap_s: float = 0.0
    buckets: dict[int, Cost] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return them by the names that telemetry has for them; of the first eight buckets."""
        told: dict[str, float] = {
            "sent_bytes": self.cost.sent_bytes,
            "compress_s": self.cost.compress_s,
            "wire_s": self.cost.wire_s,
            "gradient_bytes": self.gradient_bytes,
            "reductions": self.reductions,
            "overlap_s": self.overlap_s,
        }
        for place, cost in self.buckets.items():
            if place < _BUCKETS_TOLD:
                sent, compress, wire = _NAMES[place]
                told[sent] = cost.sent_bytes
                told[compress] = cost.compress_s
                told[wire] = cost.wire_s
        return told


class Entry:
    """A reduction that is under way."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class Meter:
    """Adds figures up, from any thread."""

    def __init__(self) -> None:
        self.overlap = Overlap()
        self._lock = threading.Lock()
        self._gradient_bytes = 0
        self._reductions = 0
        self._buckets: dict[int, Cost] = defaultdict(Cost)

    def begin(self, gradient_bytes: int) -> Entry:
        """Count a reduction of so many bytes, which is under way from now on."""
        with self._lock:
            entry = Entry(self._reductions)
            self._reductions += 1
            self._gradient_bytes += gradient_bytes
        self.overlap.add(entry)
        return entry

    def end(self, entry: Entry, cost: Cost) -> None:
        """Count what it has cost; it is over, well or not."""
        self.overlap.discard(entry)
        with self._lock:
            self._buckets[entry.place] += cost

    def take(self) -> Figures:
        """Return the sums since the last call."""
        with self._lock:
            buckets, self._buckets = self._buckets, defaultdict(Cost)
            gradient_bytes, self._gradient_bytes = self._gradient_bytes, 0
            reductions, self._reductions = self._reductions, 0
        overlap_s, total = self.overlap.take(), sum(buckets.values(), Cost())
        return Figures(total, gradient_bytes, reductions, overlap_s, buckets)


class Waits(Protocol):
    """Told when a wait begins and when it ends."""

    def begin(self, what: str) -> None:
        """Note that a wait begins."""

    def end(self, what: str) -> None:
        """Note that it is over."""


class Overlap:
    """How long reductions were under way that nobody waited for.

    Attributes
    ----------
    passed_to : Waits, optional
        Told of the same waits: of those in the process group nobody else knows.
    """

    def __init__(self) -> None:
        self.passed_to: Waits | None = None
        self._lock = threading.Lock()
        self._under_way: set[Entry] = set()
        self._waits = 0
        self._since = 0.0
        self._overlap_s = 0.0

    def add(self, entry: Entry) -> None:
        """Note that a reduction is under way."""
        with self._lock:
            self._count()
            self._under_way.add(entry)

    def discard(self, entry: Entry) -> None:
        """Note that it is over."""
        with self._lock:
            self._count()
            self._under_way.discard(entry)

    def begin(self, what: str) -> None:
        """Note that somebody waits for a reduction from now on."""
        with self._lock:
            self._count()
            self._waits += 1
        if self.passed_to is not None:
            self.passed_to.begin(what)

    def end(self, what: str) -> None:
        """Note that the wait is over, however it ended."""
        if self.passed_to is not None:
            self.passed_to.end(what)
        with self._lock:
            self._count()
            self._waits -= 1

    def forget(self) -> None:
        """Count those that are under way no more: their quorum is over."""
        with self._lock:
            self._count()
            self._under_way.clear()

    def take(self) -> float:
        """Return the seconds since the last call."""
        with self._lock:
            self._count()
            taken, self._overlap_s = self._overlap_s, 0.0
        return taken

    def _count(self) -> None:
        now = time.perf_counter()
        if self._under_way and not self._waits:
            self._overlap_s += now - self._since
        self._since = now
