"""Pause and resume the trajectory's recording by the free space on its disk.

When the disk is nearly full, recording pauses before the last bytes are used: the nats-server,
which stores commands and acks on the same disk, needs them. Control continues meanwhile.
"""

import os
from collections import deque
from collections.abc import Callable

from torchloom_core.config.trajectory import LOW_SHARE, Trajectory
from torchloom_core.floor.clock import SECOND_NS, Clock, moment_text
from torchloom_core.floor.files import has_room
from torchloom_core.live.trajectory.writer import TrajectoryWriter
from torchloom_core.wire import notices
from torchloom_core.wire.decisions import Notice
from torchloom_core.wire.events import RecordingGap

_RESERVE_BYTES = 64 << 20
_RESERVE_SHARE = 0.02
"""Reserved for the nats-server: this many bytes, or this share of the disk if it is less."""

_LOW_S = 6 * 3600.0
"""Warn of a disk that fills up within this time."""
_UNKNOWN_BYTES = 1 << 40

_SAMPLE_NS = 60 * SECOND_NS
_SAMPLES = 30
_RATE_NS = 300 * SECOND_NS
"""The rate is taken over the last half hour, and over at least five minutes."""

_AGAIN_NS = 3600 * SECOND_NS
_LONGEST_WAIT_NS = 60 * SECOND_NS
"""Longest time between two attempts to resume, if the first write fails each time."""


class Recording:
    """Pauses and resumes recording by the free disk space; checked at each tick.

    ``on_low`` is called when there is less free space than ``rules`` want, once a minute.
    """

    def __init__(
        self,
        writer: TrajectoryWriter,
        clock: Clock,
        rules: Trajectory | None = None,
        on_low: Callable[[], None] = lambda: None,
    ) -> None:
        self._thins = rules is not None
        self._rules = rules or Trajectory()
        self._on_low = on_low
        self._hurry_ns = 0
        self._writer = writer
        self._clock = clock
        self._free: deque[tuple[int, int]] = deque(maxlen=_SAMPLES)
        self._warn_ns = 0
        self._paused_ns = self._try_ns = self._resumed_ns = 0
        self._wait_ns = SECOND_NS

    def check(self) -> RecordingGap | Notice | None:
        """Pause or resume if necessary; return a notice of the pause, then the gap to record."""
        now_ns = self._clock.now_ns()
        free_bytes, total_bytes = self._room()
        reserve_bytes = min(_RESERVE_BYTES, round(_RESERVE_SHARE * total_bytes))
        writer = self._writer
        if not writer.paused and free_bytes < reserve_bytes:
            writer.flush()
            if not writer.paused:
                writer.pause(f"{writer.folder}: {_size(free_bytes)} free on the disk")
        is_low = free_bytes < min(self._rules.low_gib * (1 << 30), LOW_SHARE * total_bytes)
        if is_low and now_ns >= self._hurry_ns:
            self._hurry_ns = now_ns + 60 * SECOND_NS
            self._on_low()
        if not writer.paused:
            if now_ns - self._resumed_ns > _LONGEST_WAIT_NS:
                self._wait_ns = SECOND_NS
            return self._warning(now_ns, free_bytes, reserve_bytes, is_low=is_low)
        if not self._paused_ns:
            self._paused_ns, self._try_ns = now_ns, now_ns + self._wait_ns
            self._wait_ns = min(2 * self._wait_ns, _LONGEST_WAIT_NS)
            return notices.of_recording_pause(writer.paused)
        if now_ns < self._try_ns or free_bytes < 2 * reserve_bytes or not has_room(writer.folder):
            return None
        self._paused_ns, self._resumed_ns = 0, now_ns
        return writer.resume()

    @property
    def trouble(self) -> str:
        """Since when and why recording is paused; empty if it is not."""
        writer = self._writer
        if not (writer.paused and self._paused_ns):
            return ""
        since = moment_text(self._paused_ns // SECOND_NS * SECOND_NS)
        return f"paused since {since}, {writer.missing} inputs not recorded: {writer.paused}"

    def _room(self) -> tuple[int, int]:
        try:
            disk = os.statvfs(self._writer.folder)
        except OSError:  # the next write raises it
            return _UNKNOWN_BYTES, _UNKNOWN_BYTES
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def _warning(
        self, now_ns: int, free_bytes: int, reserve_bytes: int, *, is_low: bool
    ) -> Notice | None:
        if not self._free or now_ns - self._free[-1][0] >= _SAMPLE_NS:
            self._free.append((now_ns, free_bytes))
        (then_ns, then_bytes), rate, left_s = self._free[0], 0.0, float("inf")
        if now_ns - then_ns >= _RATE_NS and then_bytes > free_bytes:
            rate = (then_bytes - free_bytes) * SECOND_NS / (now_ns - then_ns)
            left_s = (free_bytes - reserve_bytes) / rate
        if not (is_low or left_s < _LOW_S) or now_ns < self._warn_ns:
            return None
        self._warn_ns = now_ns + _AGAIN_NS
        when = f"fills in about {_span(left_s)}" if rate else "is nearly full"
        pace = f", {_size(60 * rate)} per minute" if rate else ""
        thins = "old telemetry is thinned now, and " if is_low and self._thins else ""
        return Notice(
            kind="disk",
            text=f"the disk of {self._writer.folder} {when}: {_size(free_bytes)} free{pace}; "
            f"{thins}recording pauses at {_size(reserve_bytes)}",
        )


def _size(count: float) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.1f} MiB"


def _span(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 2 * 3600 else f"{seconds / 60:.0f} min"
