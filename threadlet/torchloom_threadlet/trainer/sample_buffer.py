"""The samples of the training thread, buffered for the link's thread."""

import itertools
import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from torchloom_core.floor.clock import SystemClock
from torchloom_core.wire.limits import MAX_METRICS
from torchloom_threadlet.cleaning import MetricNames, local_value, text, warn_once
from torchloom_threadlet.trainer.rates import add_rates, configured_peak_flops

_CAPACITY = 4096
_TAKEN_BYTES = 1 << 20
_NUMBER_BYTES = 16
_AT_ONCE_NS = 10_000_000
"""A change of state this soon after a step belongs to the step's end: the trainer did not wait."""

Sample = tuple[int, int, Mapping[str, Any]]
"""Serial number, monotonic time in ns, metrics."""


class LateMetrics(dict[str, Any]):
    """Metrics that a device has yet to compute; the training thread adds them.

    ``is_ready``: whether they are complete, and may be read in another thread.
    """

    is_ready = False


class SampleBuffer:
    """A bounded deque of samples: the oldest are dropped when it is full.

    ``peak_flops``: of this process's GPU, in FLOP/s, if it is known.
    ``gpu``: its UUID as NVML writes it, empty if it has none, None as long as no GPU was seen.
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self.waiting: deque[Sample] = deque(maxlen=capacity)
        self.dropped = 0
        self.newest_ns = 0
        self.peak_flops = configured_peak_flops()
        self.gpu: str | None = None
        self._held: Sample | None = None
        self._serial = 0
        self._clock = SystemClock()
        self._names = MetricNames()

    @property
    def progress_ns(self) -> int:
        """When the newest step ended, also if its row waits for the device."""
        try:
            return max(self.waiting[-1][1], self.newest_ns)
        except IndexError:
            return self._held[1] if self._held is not None else self.newest_ns

    def take(self, entered_ns: int) -> list[tuple[int, dict[str, float]]]:
        """Return ``(Unix time in ns, metrics)`` of waiting samples, with ``step_time_s``.

        Where a trainer reports ``wait_s``, its wait for others, the rest of the step becomes
        ``compute_s``.

        Returns as many as fit a frame, and none after a row that waits for the device; call again
        for more. A step that began well before
        ``entered_ns``, the time of the last change of state, contains a pause or a wait, so its
        duration is left out.
        """
        rows = []
        size = 0
        for _ in range(len(self.waiting) + (self._held is not None)):
            if size > _TAKEN_BYTES:
                break
            sample = self._held or self.waiting.popleft()
            serial, at_ns, metrics = sample
            # Kept here, not looked at in the deque, which may drop it meanwhile.
            self._held = sample if type(metrics) is LateMetrics and not metrics.is_ready else None
            if self._held is not None:
                break
            # Two threads that begin to step at once may get the same number.
            self.dropped = max(0, self.dropped + serial - self._serial - 1)
            waited = self.newest_ns + _AT_ONCE_NS < entered_ns
            follows = serial == self._serial + 1 and self._serial > 0 and not waited
            self._serial = serial
            row = self._row(metrics)
            if follows:
                row["step_time_s"] = (at_ns - self.newest_ns) / 1e9
                if "wait_s" in row and len(row) < MAX_METRICS:
                    row.setdefault("compute_s", max(0.0, row["step_time_s"] - row["wait_s"]))
                add_rates(row, self.peak_flops, has_gpu=self.gpu is not None)
            self.newest_ns = at_ns
            rows.append((max(0, self._clock.at_ns(at_ns)), row))
            size += _NUMBER_BYTES + sum(_NUMBER_BYTES + len(name) for name in row)
        return rows

    def _row(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        row: dict[str, float] = {}
        if len(metrics) >= MAX_METRICS:
            warn_once("metrics", f"need fewer than {MAX_METRICS} at a step, were {len(metrics)}")
        for raw_name, value in itertools.islice(metrics.items(), MAX_METRICS - 1):
            name = self._names.clean(raw_name)
            number = _number(name, value)
            if number is not None:
                row[name] = number
        return row


def _number(name: str, value: Any) -> float | None:
    try:
        number = float(local_value(value))
    except Exception as error:  # noqa: BLE001 - a tensor of the user's may raise anything
        why = text(error, 200)
        warn_once(f"metric {name}", f"need a number, was {text(value, 80)} ({why})")
        return None
    return None if math.isnan(number) else number
