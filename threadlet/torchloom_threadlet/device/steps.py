"""The steps of one process as its device makes them: time by phase, and metrics that it computes.

Events are recorded in the stream of the work, and read at a later step, once they are over. So the
training thread never waits for the device, nor does the link's thread, which would do so for ever
if the device hangs, and would end the capture of a CUDA graph.
"""

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from torchloom_threadlet.cleaning import error_line, local_value, warn_once
from torchloom_threadlet.trainer.sample_buffer import LateMetrics

if TYPE_CHECKING:
    from torchloom_threadlet.device.source import Device

FORWARD, BACKWARD, OPTIMIZER, WAIT, OTHER = "forward", "backward", "optimizer", "wait", "other"
_REPORTED = (FORWARD, BACKWARD, OPTIMIZER)
_MOST_STEPS = 64
"""Steps in flight; the host can be this far ahead of the device. More are not read."""
_LOOK_S = 0.005
_MOST_MARKS = 4096
"""Events of one step; a step with more is not measured."""

_logger = logging.getLogger(__name__)

Mark = tuple[str, Any]
"""A phase, and the event where it begins."""


class _Step(NamedTuple):
    marks: list[Mark]
    copies: dict[str, Any]
    end: Any
    metrics: LateMetrics


class DeviceSteps:
    """Measures steps on a device.

    A step begins with :meth:`begin_step`, is over with :meth:`end_step`, and is completed, with
    the metrics of its row, by :meth:`read_later`. Between two events the time is that of the phase
    that the first one begins. A step in which a graph is captured is not measured.

    ``knows_waits``: whether waits for other ranks are recorded; else a rank's own time is unknown.
    """

    def __init__(self, device: "Device") -> None:
        self.knows_waits = False
        self._device = device
        self._free: list[Any] = []
        self._pinned: dict[Any, list[Any]] = {}
        self._marks: list[Mark] = []
        self._base, self._waits = OTHER, 0
        self._is_measured = self._is_off = False
        self._round_wait_s: float | None = 0.0
        self._in_flight: deque[_Step] = deque()
        # Reentrant: a user's signal handler may step during a step.
        self._lock = threading.RLock()
        _measuring.add(self)

    def begin(self, what: str) -> None:
        """Record that a wait for other ranks begins, in whichever thread."""
        self.knows_waits = True
        with self._lock:
            self._waits += 1
            if self._waits == 1:
                self._mark(WAIT)

    def end(self, what: str) -> None:
        """Record that a wait is over."""
        with self._lock:
            self._waits = max(0, self._waits - 1)
            if not self._waits:
                self._mark(self._base)

    def enter(self, phase: str) -> None:
        """Begin a phase of the rank's own work, which the next one ends."""
        with self._lock:
            self._base = phase
            if not self._waits:
                self._mark(phase)

    def begin_step(self) -> None:
        """Begin a step: a pause, for instance, is over."""
        with self._lock:
            self._recycle(self._marks)
            self._marks, self._base, self._waits = [], OTHER, 0
            self._is_measured = True
            self._mark(OTHER)

    def end_step(self) -> None:
        """End the step, before anything that :meth:`~torchloom_threadlet.loom.Loom.step` does."""
        with self._lock:
            self._mark(OTHER)
            if not self._is_measured:
                self._recycle(self._marks)
                self._marks = []
            self._is_measured = False

    def read_later(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row of the step that is over; complete rows of earlier steps.

        Where nothing has to be read from the device, the row is ``metrics``.
        """
        with self._lock:
            marks, self._marks = self._marks, []
            row: Mapping[str, Any] | None = self._try(lambda: self._row(metrics, marks))
            if row is not None:
                return row
            return {name: value for name, value in metrics.items() if not _is_on_device(value)}

    def read(self) -> int:
        """Complete the rows of steps that are over, in order; return how many are in flight."""
        with self._lock:
            self._try(self._read)
            return len(self._in_flight)

    def is_waiting(self) -> bool:
        """Return whether the device waits for other ranks, True if that is unknown.

        For the link's thread, while the training thread waits: so no graph is being captured.
        """
        if not self._lock.acquire(blocking=False):
            return True
        try:
            return self._try(self._phase_now) in (WAIT, None)
        finally:
            self._lock.release()

    def _phase_now(self) -> str | None:
        """Return the phase that the device is in, None if the step is not measured."""
        if not self._is_measured:
            return None
        marks = [mark for step in self._in_flight for mark in step.marks] + self._marks
        is_over = self._device.is_over
        return next((phase for phase, event in reversed(marks) if is_over(event)), OTHER)

    def close(self, limit_s: float) -> None:
        """Complete the rows of steps that are over within ``limit_s``, others with what is there.

        Not if another thread has been in the driver for longer, as it may be if the device hangs.
        """
        deadline = time.monotonic() + limit_s
        if not self._lock.acquire(timeout=limit_s):
            return
        try:
            while self.read() and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            self._give_up()
        finally:
            self._lock.release()

    def _give_up(self) -> None:
        while self._in_flight:
            self._in_flight.popleft().metrics.is_ready = True

    def _row(self, metrics: Mapping[str, Any], marks: list[Mark]) -> Mapping[str, Any]:
        self._read()
        found = {name: value for name, value in metrics.items() if _is_on_device(value)}
        if not found and len(marks) < 2:
            return self._without_waits(metrics)
        rest = {name: value for name, value in metrics.items() if name not in found}
        if self._device.is_capturing() or len(self._in_flight) >= _MOST_STEPS:
            self._recycle(marks)
            return self._without_waits(rest)
        copies = {name: self._copied(name, value) for name, value in found.items()}
        end = self._event()
        self._device.record(end)
        row = LateMetrics(rest if len(marks) > 1 else self._without_waits(rest))
        copies = {name: pinned for name, pinned in copies.items() if pinned is not None}
        self._in_flight.append(_Step(marks, copies, end, row))
        return row

    def _without_waits(self, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
        """Leave out the host's waits where the device's are missing: they are no rank's own."""
        if not self.knows_waits or self._is_off:
            return metrics
        self._round_wait_s = None
        return {name: value for name, value in metrics.items() if name != "wait_s"}

    def _copied(self, name: str, value: Any) -> Any:
        """Copy a metric to the host; None if it is no number of this rank's own."""
        try:
            value, why = local_value(value), ""
        except ValueError as error:
            why = str(error)
        if why or value.numel() != 1:
            why = why or f"was a tensor of {value.numel()} elements"
            warn_once(f"metric {name}", f"need a number ({why})")
            return None
        free = self._pinned.setdefault(value.dtype, [])
        try:
            pinned = free.pop() if free else self._device.pinned(value.dtype)
            self._device.copy(value, pinned)
        except Exception as error:  # noqa: BLE001 - torch's, for instance of a sparse tensor
            warn_once(f"metric {name}", f"need a number ({error_line(error)})")
            return None
        return pinned

    def _read(self) -> None:
        if self._device.is_capturing():  # a query would end the capture
            return
        is_over = self._device.is_over
        while self._in_flight:
            marks, copies, end, row = self._in_flight[0]
            # All events: those of another stream may be over later.
            if not is_over(end) or not all(is_over(event) for _, event in marks):
                return
            self._in_flight.popleft()
            try:
                for name, pinned in copies.items():
                    row[name] = pinned.item()
                    self._pinned[pinned.dtype].append(pinned)
                if len(marks) > 1:
                    self._add_times(row, marks)
            finally:
                row.is_ready = True
            self._recycle(marks)
            self._free.append(end)

    def _add_times(self, row: LateMetrics, marks: list[Mark]) -> None:
        seconds = dict.fromkeys((WAIT, OTHER), 0.0)
        for (phase, begin), (_, end) in pairwise(marks):
            # Below 0 if the later one is in another stream that does not wait for the first.
            span_s = max(0.0, self._device.seconds(begin, end))
            seconds[phase] = seconds.get(phase, 0.0) + span_s
        row.update({f"{phase}_s": seconds[phase] for phase in _REPORTED if phase in seconds})
        if not self.knows_waits:
            return
        row["wait_s"] = seconds.pop(WAIT)
        row["compute_s"] = sum(seconds.values())
        if self._round_wait_s is not None:
            self._round_wait_s += row["wait_s"]
        if "round_wait_s" in row:
            if self._round_wait_s is not None:
                row["round_wait_s"] = self._round_wait_s
            self._round_wait_s = 0.0

    def _mark(self, phase: str) -> None:
        if not self._is_measured or self._is_off:
            return
        if len(self._marks) >= _MOST_MARKS:
            self._is_measured = False
            return
        self._is_measured = bool(self._try(lambda: self._record(phase)))

    def _record(self, phase: str) -> bool:
        """Record where a phase begins; return whether that is possible."""
        if self._device.is_capturing():
            return False
        event = self._event()
        self._device.record(event)
        self._marks.append((phase, event))
        return True

    def _event(self) -> Any:
        return self._free.pop() if self._free else self._device.event()

    def _recycle(self, marks: list[Mark]) -> None:
        self._free.extend(event for _, event in marks)

    def _try(self, call: Callable[[], Any]) -> Any:
        """Call, unless the device has failed before: training continues either way."""
        if self._is_off:
            return None
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - the driver's
            self._is_off = True
            self._give_up()
            _logger.warning("nothing is measured on the GPU any more: %s", error_line(error))
            return None


_measuring: weakref.WeakSet[DeviceSteps] = weakref.WeakSet()


def _stop_in_child() -> None:
    """Measure nothing in a forked child, where another thread's lock would stay locked."""
    for steps in list(_measuring):
        steps._lock, steps._is_off = threading.RLock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_stop_in_child)


def _is_on_device(value: Any) -> bool:
    return bool(getattr(value, "is_cuda", False))
