"""What a preview finds, gathered into pieces: curves a few times a second, all else at once."""

from collections.abc import Callable

from torchloom_core.wire.preview import Arm, Curve, Piece
from torchloom_core.wire.standby_task import Loss
from torchloom_threadlet.standby_tasks.pace import Pace, finite


class Report:
    """Tells the losses of one arm after the other, several at a time.

    Parameters
    ----------
    tell : callable
        Takes a piece.
    """

    def __init__(self, tell: Callable[[Piece], object]) -> None:
        self._tell = tell
        self._pace = Pace()
        self._losses: list[Loss] = []
        self.begin(0, "control")

    def begin(self, repeat: int, arm: Arm) -> None:
        """Take the losses that come from now on for those of this arm."""
        self.flush()
        self._repeat, self._arm, self._first = repeat, arm, 0

    def add(self, loss: float) -> None:
        """Take the next loss, and tell it if that is due."""
        self._losses.append(finite(loss))
        if self._pace.is_due(len(self._losses)):
            self.flush()

    def tell(self, piece: Piece) -> None:
        """Tell a piece, after the losses that came before it."""
        self.flush()
        self._tell(piece)

    def flush(self) -> None:
        """Tell the losses that were gathered."""
        self._pace.told()
        losses, self._losses = self._losses, []
        if losses:
            repeat, arm, first = self._repeat, self._arm, self._first
            self._first += len(losses)
            self._tell(Curve(repeat=repeat, arm=arm, first=first, losses=tuple(losses)))
