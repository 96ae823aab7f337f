"""What the trainer does: it computes, waits for others, or is in a named phase.

An adapter records waits, in the thread that waits; the script (``loom.phase``), a framework's hooks
or torch's own of compilations record named phases. The link's thread reads both.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from torchloom_core.wire.limits import MAX_SHORT_TEXT
from torchloom_threadlet.cleaning import text
from torchloom_threadlet.ipc import COMPUTE, NamedPhase, Phase
from torchloom_threadlet.trainer.start_marks import StartMarks

_REPORTED_AFTER_NS = 100_000_000
_LONGEST_PHASE_S = 1e6
COMPILE_S = 900.0
"""How long a compilation may explain that no step is finished, in seconds."""

_MODULE = "torch._dynamo.callback"
_logger = logging.getLogger(__name__)


class Waits(Protocol):
    """Gets the beginning and the end of each wait."""

    def begin(self, what: str) -> None:
        """Record that a wait begins."""

    def end(self, what: str) -> None:
        """Record that a wait is over."""


class DeviceWaits(Waits, Protocol):
    """Finds the same waits on the device, which is behind the host."""

    def is_waiting(self) -> bool:
        """Return whether the device waits, not whether it still works on what came before."""

    def read(self) -> int:
        """Complete the rows of steps that are over; return how many are not, without waiting."""


class Phases:
    """The phase of one trainer, and how long it has waited.

    ``waited_ns``: time in waits that are over, summed.
    ``starting``: the marks of its start, which waits and named phases are part of.
    ``device``: gets the same waits where a process trains on a GPU.
    """

    def __init__(self, starting: StartMarks | None = None) -> None:
        self.starting = starting or StartMarks(time.time_ns(), lambda _: None, is_standby=False)
        self.waited_ns = 0
        self.quorum_id = -1
        self.device: DeviceWaits | None = None
        self._lock = threading.Lock()
        self._waits: list[str] = []
        self._named: list[NamedPhase] = []
        self._since_ns = 0
        self._computes_since_ns = 0

    def begin(self, what: str) -> None:
        """Record that a wait begins; the time of overlapping waits counts once."""
        self.starting.begin(what)
        with self._lock:
            if not self._waits:
                self._since_ns = time.monotonic_ns()
            self._waits.append(what)
        # Without the lock, which the link's thread takes: the driver may block here.
        if self.device is not None:
            self.device.begin(what)

    def end(self, what: str) -> None:
        """Record that a wait is over, however it ended."""
        self.starting.end(what)
        if self.device is not None:
            self.device.end(what)
        with self._lock:
            self._waits.remove(what)
            if not self._waits:
                self._computes_since_ns = time.monotonic_ns()
                self.waited_ns += self._computes_since_ns - self._since_ns

    def enter(self, name: str, at_most_s: float) -> NamedPhase:
        """Begin a named phase, and return it for :meth:`leave`.

        Raises ValueError if the bound is not a number of seconds above 0.
        """
        if not (isinstance(at_most_s, int | float) and at_most_s > 0):
            raise ValueError(f"phase {name!r}: need at_most_s > 0, in seconds, was {at_most_s!r}")
        now_ns = time.monotonic_ns()
        until_ns = now_ns + round(min(at_most_s, _LONGEST_PHASE_S) * 1e9)
        phase = NamedPhase(name=text(name, MAX_SHORT_TEXT), since_ns=now_ns, until_ns=until_ns)
        with self._lock:
            self._named.append(phase)
        self.starting.begin(phase.name)
        return phase

    def leave(self, phase: NamedPhase) -> None:
        """End a named phase."""
        self.starting.end(phase.name)
        with self._lock:
            self._named.remove(phase)

    def named(self) -> NamedPhase | None:
        """Return the named phase now; of nested phases the one with the latest end."""
        with self._lock:
            return max(self._named, key=lambda phase: phase.until_ns, default=None)

    def present(self) -> Phase | None:
        """Return the phase now, None where no adapter records phases.

        A wait counts once it takes longer than most collectives: 0.1 s.
        """
        with self._lock:
            waits, since_ns = self._waits, self._since_ns
            if not since_ns:
                return None
            lasts = waits and time.monotonic_ns() - since_ns > _REPORTED_AFTER_NS
            if lasts and (self.device is None or self.device.is_waiting()):
                return Phase(name=waits[-1], since_ns=since_ns, quorum_id=self.quorum_id)
            since_ns = self._computes_since_ns or since_ns
            return Phase(name=COMPUTE, since_ns=since_ns, quorum_id=self.quorum_id)


class Compilations:
    """Records torch.compile's compilations, autotuning and CUDA graph recordings.

    torch is never imported here: :meth:`look` finds the hooks once a script has imported them, and
    again after ``torch._dynamo.reset()``, which removes callbacks.
    """

    def __init__(self, phases: Phases, report: Callable[[], None]) -> None:
        self._phases = phases
        self._report = report
        self._lock = threading.Lock()
        self._phase: NamedPhase | None = None

    def look(self) -> None:
        """Register with torch's hooks where they exist and lack these callbacks."""
        handler = getattr(sys.modules.get(_MODULE), "callback_handler", None)
        if handler is None:
            return
        try:
            if self._begin not in handler.start_callbacks:
                handler.register_start_callback(self._begin)
            if self._end not in handler.end_callbacks:
                handler.register_end_callback(self._end)
        except Exception:  # a torch with other hooks
            _logger.debug("torch's compilations are not reported", exc_info=True)

    def _begin(self, _: Any) -> None:
        try:
            phase = self._phases.enter("compile", COMPILE_S)
            self._exchange(phase)
            self._report()
        except Exception:
            _logger.exception("cannot report a compilation; it continues")

    def _end(self, _: Any) -> None:
        try:
            self._exchange(None)
        except Exception:
            _logger.exception("cannot report the end of a compilation")

    def _exchange(self, phase: NamedPhase | None) -> None:
        """Make ``phase`` the present compilation; a reset loses the end of the one before."""
        with self._lock:
            before, self._phase = self._phase, phase
        if before is not None:
            self._phases.leave(before)
