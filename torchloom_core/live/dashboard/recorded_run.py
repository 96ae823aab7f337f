"""A recorded run as its pages see it: all epochs of its Weaver, to their end."""

import asyncio
import math
from contextlib import suppress
from pathlib import Path

import msgspec

from torchloom_core.floor.clock import SECOND_NS, moment_text
from torchloom_core.live.dashboard.run_state import RunState
from torchloom_core.live.trajectory.reader import EpochRecord, Recorded, read_epochs
from torchloom_core.wire.codec import UNREADABLE
from torchloom_core.wire.events import Forecast
from torchloom_core.wire.requests import Request

_AT_ONCE = 500
"""Inputs that are read before other tasks run."""

_LONGEST_GAP_S = 5.0


class _Tag(msgspec.Struct):
    type: str


class RecordedRun(RunState):
    """The run of a trajectory; raises as ``read_epochs``."""

    is_recorded = True

    def __init__(self, root: Path, stale_after_s: float) -> None:
        super().__init__(stale_after_s, "a recorded run is being read")
        self._epochs = read_epochs(root)
        self._now_s = 0.0
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
        end = moment_text(round(self._now_s) * SECOND_NS)
        self.trouble = f"a recorded run, as it was at {end}: it takes no requests"
        await asyncio.Event().wait()

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
            case message:
                self.take_input(message, at_s)
        for output in recorded.outputs:
            with suppress(*UNREADABLE):  # another version: it cannot be shown
                self.take_output(msgspec.json.decode(output, type=_Tag).type, output, at_s)
