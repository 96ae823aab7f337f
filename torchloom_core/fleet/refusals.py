"""Tell, and not too often, that a worker may not enter a run that has had as many as it may."""

from torchloom_core.clock import SECOND_NS
from torchloom_core.fleet.state import FleetState
from torchloom_core.wire import notices
from torchloom_core.wire.events import Output
from torchloom_core.wire.messages import Hello

_EVERY_NS = 60 * SECOND_NS


class Refusals:
    """Remembers when it was told last."""

    def __init__(self) -> None:
        self._told_ns = -_EVERY_NS

    def tell(self, hello: Hello, fleet: FleetState, now_ns: int) -> list[Output]:
        """Return what is to be told of a hello that was not taken, if it was for want of room."""
        if hello.worker in fleet.row_of or now_ns < self._told_ns + _EVERY_NS:
            return []
        self._told_ns = now_ns
        return [notices.of_refused(hello)]
