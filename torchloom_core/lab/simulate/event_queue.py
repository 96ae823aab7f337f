"""The event queue of the fleet model: due callbacks in a heap, and recorded events in a list."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.simulate.records import FleetEvent, Kind
from torchloom_core.lab.simulate.scenario import Hit

NEVER_NS = 2**63 - 1

Act = Callable[[int, Any], None]


class EventQueue:
    """A heap of due callbacks; those due at the same time run in the order of their scheduling.

    ``version`` grows with every change of a worker's presence or state; ``events`` is the number of
    processed callbacks and hits.
    """

    __slots__ = ("_made", "events", "fleet_events", "heap", "now_ns", "version")

    def __init__(self, start_ns: int) -> None:
        self.heap: list[tuple[int, int, Act, Any]] = []
        self.now_ns = start_ns
        self.version = 1
        self.events = 0
        self.fleet_events: list[FleetEvent] = []
        self._made = 0

    def at(self, ts_ns: int, act: Act, argument: Any) -> None:
        """Schedule ``act(ts_ns, argument)`` at ``ts_ns``."""
        self._made += 1
        heappush(self.heap, (ts_ns, self._made, act, argument))

    def run(self, until_ns: int) -> None:
        """Run the callbacks that are due by ``until_ns``."""
        heap = self.heap
        while heap and heap[0][0] <= until_ns:
            ts_ns, _, act, argument = heappop(heap)
            self.now_ns = ts_ns
            self.events += 1
            act(ts_ns, argument)

    def record(
        self, kind: Kind, node: str = "", group: str = "", detail: str = "", hit: Hit | None = None
    ) -> None:
        """Record an event at the current time."""
        self.fleet_events.append(FleetEvent(self.now_ns, kind, node, group, detail, hit))

    def record_all(self, kind: Kind, times_ns: Iterable[int]) -> None:
        """Record past events of one kind."""
        self.fleet_events += [FleetEvent(ts_ns, kind) for ts_ns in times_ns]

    def take_events(self) -> list[FleetEvent]:
        """Return the events recorded since the last call, in order of time."""
        fleet_events, self.fleet_events = self.fleet_events, []
        return sorted(fleet_events, key=attrgetter("ts_ns"))


def to_ns(seconds: float) -> int:
    """Round to whole nanoseconds, at most ``NEVER_NS``."""
    return round(seconds * SECOND_NS) if seconds * SECOND_NS < NEVER_NS else NEVER_NS
