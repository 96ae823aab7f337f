"""The state of a run as pages see it, of a live run or of a recorded one."""

import time
from contextlib import suppress
from typing import Any

import msgspec

from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.health import health
from torchloom_core.live.dashboard.preview import PreviewShown
from torchloom_core.live.dashboard.record import Record
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.live.trajectory.standby_tasks import StandbyTasks
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.messages import LOG, Exit, Hello, Note, Telemetry
from torchloom_core.wire.operator import Status

_COMMAND_STATUS = str(CommandStatus.__struct_config__.tag)


class RunState:
    """The state of a run.

    ``status`` is the Weaver's last, without the workers; ``trouble`` is why it does not answer at
    the moment. ``knobs_version`` changes whenever ``knobs`` do. ``started_s`` is when the record
    began, seconds since the epoch, 0 if unknown.
    """

    is_recorded = False

    def __init__(self, stale_after_s: float, trouble: str, run: str = "") -> None:
        self.run = run
        self.started_s = 0.0
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

    def take_input(self, message: object, now_s: float) -> None:
        """Take what a worker has sent; anything else is ignored."""
        match message:
            case Telemetry():
                self.board.take(message, now_s)
            case Hello():
                self.board.add(message, now_s)
            case Exit():
                self.board.end(message, now_s)
            case Note(kind=kind) if kind == LOG:
                self.record.log(message, now_s)
            case Note():
                self.standby_tasks.take(message)

    def take_output(self, kind: str, data: bytes, now_s: float) -> None:
        """Take an output of the Weaver."""
        self.record.take(kind, data, now_s)
        if kind == _COMMAND_STATUS:
            with suppress(*UNREADABLE):
                status = msgspec.json.decode(data, type=CommandStatus)
                self.standby_tasks.take_status(status)

    def health(self) -> dict[str, Any]:
        """Return whether the run is healthy, and why not."""
        return health(self.board, self.status, self.now_s)

    @property
    def now_s(self) -> float:
        """The moment that is shown, seconds since the epoch."""
        return time.time()

    @property
    def age_s(self) -> float | None:
        """The age of the Weaver's last answer, seconds; None before the first."""
        return None
