"""Gathers a preview's results into pieces: curves twice a second, the rest at once."""

from collections.abc import Callable

from torchloom_core.wire.preview import Arm, Curve, Piece
from torchloom_core.wire.standby_task import Loss
from torchloom_threadlet.standby_tasks.budget import Pace, finite


class Report:
    """Sends the losses of one arm after the other, several at a time."""

    def __init__(self, send: Callable[[Piece], object]) -> None:
        self._send = send
        self._pace = Pace()
        self._losses: list[Loss] = []
        self.begin(0, "control")

    def begin(self, repeat: int, arm: Arm) -> None:
        """Begin the losses of this arm."""
        self.flush()
        self._repeat, self._arm, self._first = repeat, arm, 0

    def add(self, loss: float) -> None:
        """Take the next loss, and send it if that is due."""
        self._losses.append(finite(loss))
        if self._pace.is_due(len(self._losses)):
            self.flush()

    def send(self, piece: Piece) -> None:
        """Send a piece, after the losses before it."""
        self.flush()
        self._send(piece)

    def flush(self) -> None:
        """Send the gathered losses."""
        self._pace.reset()
        losses, self._losses = self._losses, []
        if losses:
            repeat, arm, first = self._repeat, self._arm, self._first
            self._first += len(losses)
            self._send(Curve(repeat=repeat, arm=arm, first=first, losses=tuple(losses)))
