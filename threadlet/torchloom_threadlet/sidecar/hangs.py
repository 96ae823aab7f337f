"""Detect that the trainer makes no progress or exceeds a bound, and collect diagnostics."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from torchloom_core.wire.commands import FINAL_STATUSES, Ack, Command
from torchloom_core.wire.messages import FieldValue
from torchloom_core.wire.operations import StandbyTask
from torchloom_threadlet.ipc import Flight, FlightRequest
from torchloom_threadlet.sidecar.telemetry import Batches, phase_fields, phase_left_s
from torchloom_threadlet.stacks import StackReader

_FLIGHT_WAIT_S = 2.0


class Hangs:
    """Detects a hang and collects diagnostics, once for each missing step.

    ``after_s``: seconds without progress.
    """

    def __init__(
        self,
        heartbeat: Batches,
        pid: int,
        after_s: float,
        stacks: StackReader,
        to_link: Callable[[msgspec.Struct], Any],
    ) -> None:
        self._heartbeat = heartbeat
        self._pid = pid
        self._after_s = after_s
        self._stacks = stacks
        self._to_link = to_link
        self._reported_ns = 0
        self._overrun_ns = 0
        self._flight: asyncio.Future[Flight] | None = None

    def is_news(self) -> bool:
        """Return whether the trainer hangs, and this step's hang is not reported yet.

        A trainer in a named phase does not hang until the phase's bound has passed.
        """
        latest = self._heartbeat.latest
        news = (
            latest.state == "training"
            and latest.progress_ns != self._reported_ns
            and self._heartbeat.progress_age_s > self._after_s
            and phase_left_s(latest, time.monotonic_ns()) <= 0
        )
        if news:
            self._reported_ns = latest.progress_ns
        return news

    def overrun(self) -> dict[str, FieldValue] | None:
        """Return the fields of a note, once for each named phase that exceeds its bound."""
        phase = self._heartbeat.latest.named
        if (
            phase is None
            or time.monotonic_ns() <= phase.until_ns
            or phase.since_ns == self._overrun_ns
        ):
            return None
        self._overrun_ns = phase.since_ns
        return {"phase": phase.name, "at_most_s": (phase.until_ns - phase.since_ns) / 1e9}

    def take(self, flight: Flight) -> None:
        """Take the requested dump of the Flight Recorder."""
        if self._flight is not None and not self._flight.done():
            self._flight.set_result(flight)

    async def evidence(self) -> dict[str, FieldValue]:
        """Return the fields of the note."""
        age_s = self._heartbeat.progress_age_s
        waits = phase_fields(self._pid, self._heartbeat.latest, time.monotonic_ns())
        stacks = await asyncio.to_thread(self._stacks.read)
        self._flight = asyncio.get_running_loop().create_future()
        self._to_link(FlightRequest())
        flight = Flight(text="")
        with contextlib.suppress(asyncio.TimeoutError):
            flight = await asyncio.wait_for(self._flight, _FLIGHT_WAIT_S)
        return {
            "progress_age_s": age_s,
            **waits,
            **flight.fields(),
            "stacks": stacks,
            "flight_recorder": flight.text,
        }


class Overdue:
    """Standby tasks in which the standby hangs, though its sidecar does not."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def begin(self, command: Command) -> None:
        """Take a command of any kind that the trainer gets."""
        if isinstance(command.do, get_args(StandbyTask)):
            allowed_s = (command.deadline_ns - command.issued_ns) / 1e9
            self._until_s.setdefault(command.id, time.monotonic() + allowed_s)

    def end(self, ack: Ack) -> None:
        """Take the trainer's ack of a command."""
        if ack.status in FINAL_STATUSES:
            self._until_s.pop(ack.command, None)

    def __bool__(self) -> bool:
        """Whether a task is overdue."""
        return any(until_s < time.monotonic() for until_s in self._until_s.values())
