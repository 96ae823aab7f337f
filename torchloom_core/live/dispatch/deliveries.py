"""Whether effectors deliver: a person gets a notice when one fails, and when it works again."""

from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import DeliveryStatus


class Deliveries:
    """The last result of each effector."""

    def __init__(self) -> None:
        self._failing: dict[str, str] = {}

    def take(self, status: DeliveryStatus) -> list[Notice]:
        """Return a notice if the effector's result is another failure, or the first success."""
        before = self._failing.pop(status.effector, "")
        if status.result in ("delivered", "dry_run"):
            return [notices.of_delivery(status)] if before else []
        self._failing[status.effector] = status.result
        return [notices.of_delivery(status)] if status.result != before else []
