"""Workers that send telemetry and have not registered, and which of them to call."""

from collections.abc import Iterable

from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.wire.messages import CALLED_AT_ONCE

_PATIENCE_NS = 3 * SECOND_NS
"""A hello on its way may be overtaken by telemetry: a call would only add another hello."""


class Strangers:
    """Since when each worker has sent telemetry without being registered."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}

    def note(self, workers: Iterable[str], now_ns: int) -> None:
        """Take the strangers of a tick."""
        self._since_ns = {worker: self._since_ns.get(worker, now_ns) for worker in workers}

    def to_call(self, now_ns: int) -> list[str]:
        """Return those that have waited for long, oldest first, as many as a call names."""
        due = [w for w, since_ns in self._since_ns.items() if now_ns - since_ns >= _PATIENCE_NS]
        return sorted(due, key=self._since_ns.__getitem__)[:CALLED_AT_ONCE]
