"""The state of a run as pages see it: of a live run, or of a recorded one to its end."""

import asyncio
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.live.dashboard.board import Board
from torchloom_core.live.dashboard.checkpoints import KINDS, Checkpoints
from torchloom_core.live.dashboard.preview import PreviewShown
from torchloom_core.live.dashboard.programs import ProgramsShown
from torchloom_core.live.dashboard.record import Record
from torchloom_core.live.dashboard.recoveries import RecoveriesShown
from torchloom_core.live.fleet.programs import Programs
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.live.trajectory.reader import EpochRecord, Recorded, read_epochs
from torchloom_core.live.trajectory.standby_tasks import StandbyTasks
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.decisions import CommandStatus
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.messages import LOG, Exit, Hello, Note, Telemetry
from torchloom_core.wire.programs import ProgramSeen
from torchloom_core.wire.requests import Request
from torchloom_core.wire.status import Status

_COMMAND_STATUS = str(CommandStatus.__struct_config__.tag)

_AT_ONCE = 500
"""Inputs that are read before other tasks run."""

_LONGEST_GAP_S = 5.0


class RunState:
    """The state of a run; ``trouble`` is why the Weaver does not answer at the moment.

    ``knobs_version`` changes whenever ``knobs`` do. ``started_s`` is when the record began, seconds
    since the epoch, 0 if unknown.
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
        self.recoveries = RecoveriesShown()
        self.checkpoints = Checkpoints()
        self.programs = ProgramsShown()
        self.status: Status | None = None
        self.knobs: list[dict[str, Any]] = []
        self.knobs_version = 0
        self.backtest: dict[str, Any] = {}
        self.trouble = trouble

    def take_input(self, message: object, now_s: float) -> None:
        """Take what a worker has sent; anything else is ignored."""
        self.recoveries.take(message, now_s)
        match message:
            case Telemetry():
                self.board.take(message, now_s)
            case Hello():
                self.board.add(message, now_s)
            case Exit():
                self.board.end(message, now_s)
            case Note(kind=kind) if kind == LOG:
                self.record.log(message, now_s)
            case Note(kind=kind) if kind in KINDS:
                self.checkpoints.take(message, now_s)
            case Note():
                self.standby_tasks.take(message)

    def take_output(self, kind: str, data: bytes, now_s: float) -> None:
        """Take an output of the Weaver."""
        self.record.take(kind, data, now_s)
        if kind == _COMMAND_STATUS:
            with suppress(*UNREADABLE):
                status = msgspec.json.decode(data, type=CommandStatus)
                self.standby_tasks.take_status(status)
                self.recoveries.take(status, now_s)

    @property
    def now_s(self) -> float:
        """The moment that is shown, seconds since the epoch."""
        return time.time()

    @property
    def age_s(self) -> float | None:
        """The age of the Weaver's last answer, seconds; None before the first."""
        return None


class _Tag(msgspec.Struct):
    type: str


class RecordedRun(RunState):
    """The run of a trajectory; raises as ``read_epochs``."""

    is_recorded = True

    def __init__(self, root: Path, stale_after_s: float) -> None:
        super().__init__(stale_after_s, "a recorded run is being read")
        self._epochs = read_epochs(root)
        self._now_s = 0.0
        self._seen = Programs()
        self.run = self._epochs[-1].meta.run if self._epochs else root.name
        self.started_s = self._epochs[0].meta.started_ns / SECOND_NS if self._epochs else 0.0

    @property
    def now_s(self) -> float:
        """The end of what was read."""
        return self._now_s

    async def follow(self) -> None:
        """Read all of it, then wait for ever; StateError if it is damaged."""
        for epoch_record in self._epochs:
            await self._read(epoch_record)
        self.programs.take(self._seen.status())
        end = moment_text(round(self._now_s) * SECOND_NS)
        missing = "".join(f"; {one.missing}" for one in self._epochs if one.missing)
        self.trouble = f"a recorded run, as it was at {end}: it takes no requests{missing}"
        await self.programs.follow()

    async def _read(self, epoch_record: EpochRecord) -> None:
        for number, recorded in enumerate(epoch_record.inputs()):
            self._take(recorded)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        self.board.close_second(self._now_s)

    def _take(self, recorded: Recorded) -> None:
        at_s = recorded.ts_recv_ns / SECOND_NS
        if math.floor(at_s) > math.floor(self._now_s):
            if at_s - self._now_s < _LONGEST_GAP_S:
                self.board.close_second(self._now_s)
            self._now_s = at_s
        match recorded.message:
            case Forecast() as forecast:
                self.record.add_forecast(forecast, at_s)
            case Request() as request:
                self.record.take("request", msgspec.json.encode(request), at_s)
            case ProgramSeen() as seen:
                self._seen.take(seen, recorded.ts_recv_ns)
            case message:
                self.take_input(message, at_s)
        for output in recorded.outputs:
            with suppress(*UNREADABLE):  # another version: it cannot be shown
                self.take_output(msgspec.json.decode(output, type=_Tag).type, output, at_s)
