"""What pages are shown, of a run that goes on or of one that is on record."""

import time
from typing import Any

from torchloom_core.room.board import Board
from torchloom_core.room.preview import PreviewShown
from torchloom_core.room.record import Record
from torchloom_core.trajectory.landscape import Landscape
from torchloom_core.trajectory.pieces import Pieces
from torchloom_core.trajectory.preview import Preview
from torchloom_core.wire.operator import Status


class Seen:
    """What is known of a run.

    Attributes
    ----------
    status : Status, optional
        What the Weaver said last, without the workers.
    knobs : list of dict
        The table of knobs for people: each with what it takes, what is wanted and what it is.
    knobs_version : int
        Another number whenever that has changed.
    backtest : dict
        What :class:`~torchloom_core.room.backtest.Backtest` tells.
    trouble : str
        Why the Weaver cannot be asked at the moment; empty while it can.
    """

    def __init__(self, stale_after_s: float, trouble: str) -> None:
        self.board = Board(stale_after_s)
        self.record = Record()
        self.landscape = Landscape()
        self.preview = Preview()
        self.preview_shown = PreviewShown(self.preview)
        self.status: Status | None = None
        self.knobs: list[dict[str, Any]] = []
        self.knobs_version = 0
        self.backtest: dict[str, Any] = {}
        self.trouble = trouble

    @property
    def errands(self) -> tuple[Pieces, ...]:
        """What takes the notes of each kind of errand."""
        return self.landscape, self.preview

    @property
    def now_s(self) -> float:
        """The moment that is seen, seconds since the epoch."""
        return time.time()

    @property
    def age_s(self) -> float | None:
        """How old the Weaver's last word is; None where there was none."""
        return None
