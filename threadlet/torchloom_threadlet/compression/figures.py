"""The bytes and the time of allreduces since the last call, in total and by bucket."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from torchloom_threadlet.cleaning import error_line, warn_once
from torchloom_threadlet.trainer.phases import Waits

_BUCKETS_REPORTED = 8


@dataclass(frozen=True)
class Cost:
    """What one reduction cost this rank.

    ``sent_bytes``: payload sent from here, computed.
    ``wire_s``: time in collectives, including the wait for slower peers.
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

    ``cost``: of all of them; overlapping ones each count.
    ``overlap_s``: time in which at least one was in flight and no thread waited for any.
    ``buckets``: by index among the reductions, from 0. One that ends after a call counts in the
    next.
    """

    cost: Cost = Cost()
    gradient_bytes: int = 0
    reductions: int = 0
    overlap_s: float = 0.0
    buckets: dict[int, Cost] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of telemetry; of the first eight buckets."""
        metrics: dict[str, float] = {
            **asdict(self.cost),
            "gradient_bytes": self.gradient_bytes,
            "reductions": self.reductions,
            "overlap_s": self.overlap_s,
        }
        for place, cost in self.buckets.items():
            if place < _BUCKETS_REPORTED:
                metrics[f"bucket_{place}_bytes"] = cost.sent_bytes
                metrics[f"bucket_{place}_compress_s"] = cost.compress_s
                metrics[f"bucket_{place}_wire_s"] = cost.wire_s
        return metrics


@dataclass(frozen=True, eq=False)
class Entry:
    """A reduction in flight."""

    place: int


Late = Callable[[], Cost | None]
"""Returns the cost that only an accelerator's clock knows; None until it has ended there."""


class Meter:
    """Adds up figures, from any thread."""

    def __init__(self) -> None:
        self._late: list[tuple[int, Late]] = []
        self.overlap = Overlap()
        self._lock = threading.Lock()
        self._gradient_bytes = 0
        self._reductions = 0
        self._buckets: dict[int, Cost] = defaultdict(Cost)

    def begin(self, gradient_bytes: int) -> Entry:
        """Count a reduction of so many bytes, in flight from now on."""
        with self._lock:
            entry = Entry(self._reductions)
            self._reductions += 1
            self._gradient_bytes += gradient_bytes
        self.overlap.add(entry)
        return entry

    def end(self, entry: Entry, cost: Cost, late: Late | None = None) -> None:
        """Count its cost, and later what ``late`` returns; it is over, or was ended by an error."""
        self.overlap.discard(entry)
        with self._lock:
            self._buckets[entry.place] += cost
            if late is not None:
                self._late.append((entry.place, late))

    def take(self) -> Figures:
        """Return the sums since the last call."""
        with self._lock:
            self._read_late()
            buckets, self._buckets = self._buckets, defaultdict(Cost)
            gradient_bytes, self._gradient_bytes = self._gradient_bytes, 0
            reductions, self._reductions = self._reductions, 0
        overlap_s, total = self.overlap.take(), sum(buckets.values(), Cost())
        return Figures(total, gradient_bytes, reductions, overlap_s, buckets)

    def _read_late(self) -> None:
        pending, self._late = self._late, []
        for place, late in pending:
            try:
                cost = late()
            except Exception as error:  # noqa: BLE001 - the driver's
                warn_once(
                    "compress_s", f"some times on the device are missing: {error_line(error)}"
                )
                continue
            if cost is None:
                self._late.append((place, late))
            else:
                self._buckets[place] += cost


class Overlap:
    """How long reductions were in flight while no thread waited for them.

    ``passed_to``: gets the same waits: those in the process group are recorded nowhere else.
    """

    def __init__(self) -> None:
        self.passed_to: Waits | None = None
        self._lock = threading.Lock()
        self._under_way: set[Entry] = set()
        self._waits = 0
        self._since = 0.0
        self._overlap_s = 0.0

    def add(self, entry: Entry) -> None:
        """Record that a reduction is in flight."""
        with self._lock:
            self._count()
            self._under_way.add(entry)

    def discard(self, entry: Entry) -> None:
        """Record that a reduction is over."""
        with self._lock:
            self._count()
            self._under_way.discard(entry)

    def begin(self, what: str) -> None:
        """Record that a thread waits for a reduction."""
        with self._lock:
            self._count()
            self._waits += 1
        if self.passed_to is not None:
            self.passed_to.begin(what)

    def end(self, what: str) -> None:
        """Record that the wait is over, however it ended."""
        if self.passed_to is not None:
            self.passed_to.end(what)
        with self._lock:
            self._count()
            self._waits -= 1

    def forget(self) -> None:
        """Drop the reductions in flight: their quorum is over."""
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
