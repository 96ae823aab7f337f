"""Report workers that are refused because the run is full, once a minute at most."""

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.live.fleet.state import FleetState
from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Output
from torchloom_core.wire.messages import Hello

_EVERY_NS = 60 * SECOND_NS


class RefusedWorkers:
    """Remembers the time of the last notice."""

    def __init__(self) -> None:
        self._last_ns = -_EVERY_NS

    def notices(self, hello: Hello, fleet: FleetState, now_ns: int) -> list[Output]:
        """Return a notice if the hello's worker has no row, which means that the run is full."""
        if hello.worker in fleet.row_of or now_ns < self._last_ns + _EVERY_NS:
            return []
        self._last_ns = now_ns
        return [notices.of_refused(hello)]
