"""What pages are shown, of a run that goes on or of one that is on record."""

import time
from contextlib import suppress
from typing import Any

import msgspec

from torchloom_core.dashboard.board import Board
from torchloom_core.dashboard.preview import PreviewShown
from torchloom_core.dashboard.record import Record
from torchloom_core.trajectory.landscape import Landscape
from torchloom_core.trajectory.preview import Preview
from torchloom_core.trajectory.standby_tasks import StandbyTasks
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import CommandStatus
from torchloom_core.wire.operator import Status

_LIFE = str(CommandStatus.__struct_config__.tag)


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
        What :class:`~torchloom_core.dashboard.backtest.Backtest` tells.
    run : str
        Its name.
    is_recorded : bool
        Whether it is one on record.
    trouble : str
        Why the Weaver cannot be asked at the moment; empty while it can.
    """

    is_recorded = False

    def __init__(self, stale_after_s: float, trouble: str, run: str = "") -> None:
        self.run = run
        self.board = Board(stale_after_s)
        self.record = Record()
        self.landscape = Landscape()
        self.preview = Preview()
        self.standby_tasks = StandbyTasks(self.landscape, self.preview)
        self.preview_shown = PreviewShown(self.preview)
        self.status: Status | None = None
        self.knobs: list[dict[str, Any]] = []
        self.knobs_version = 0
        self.backtest: dict[str, Any] = {}
        self.trouble = trouble

    def hear_told(self, kind: str, data: bytes, now_s: float) -> None:
        """Take what the Weaver tells."""
        self.record.take(kind, data, now_s)
        if kind == _LIFE:
            with suppress(*UNREADABLE):
                life = msgspec.json.decode(data, type=CommandStatus)
                self.standby_tasks.take_status(life)

    @property
    def now_s(self) -> float:
        """The moment that is seen, seconds since the epoch."""
        return time.time()

    @property
    def age_s(self) -> float | None:
        """How old the Weaver's last word is; None where there was none."""
        return None
