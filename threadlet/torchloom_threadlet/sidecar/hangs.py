"""Notice that the trainer makes no progress, and tell what can be known of it."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from torchloom_core.wire.messages import FieldValue
from torchloom_threadlet.ipc import Flight, FlightAsked
from torchloom_threadlet.sidecar.telemetry import Batches
from torchloom_threadlet.sidecar.trainer_state import phase_fields, phase_left_s
from torchloom_threadlet.stacks import StackReader

_FLIGHT_WAIT_S = 2.0


class Hangs:
    """Looks for a hang and collects the evidence, once for each step that does not come.

    Parameters
    ----------
    after_s : float
        Seconds without progress.
    stacks : StackReader
        Reads the trainer's stacks.
    to_link : callable
        Sends a frame to the trainer.
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
        self._told_ns = 0
        self._flight: asyncio.Future[Flight] | None = None

    def is_news(self) -> bool:
        """Say whether the trainer hangs, and this has not been asked of the same step.

        One in a named phase does not, until the phase's bound has passed.
        """
        latest = self._heartbeat.latest
        news = (
            latest.state == "training"
            and latest.progress_ns != self._told_ns
            and self._heartbeat.progress_age_s > self._after_s
            and phase_left_s(latest, time.monotonic_ns()) <= 0
        )
        if news:
            self._told_ns = latest.progress_ns
        return news

    def hear(self, flight: Flight) -> None:
        """Take the Flight Recorder's dump that was asked for."""
        if self._flight is not None and not self._flight.done():
            self._flight.set_result(flight)

    async def evidence(self) -> dict[str, FieldValue]:
        """Return the fields of the note."""
        age_s = self._heartbeat.progress_age_s
        waits = phase_fields(self._pid, self._heartbeat.latest, time.monotonic_ns())
        stacks = await asyncio.to_thread(self._stacks.read)
        self._flight = asyncio.get_running_loop().create_future()
        self._to_link(FlightAsked())
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
