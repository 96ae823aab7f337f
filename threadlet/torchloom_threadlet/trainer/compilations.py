"""Report torch's compilations as a phase, through torch's own hooks."""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from torchloom_threadlet.ipc import NamedPhase
from torchloom_threadlet.trainer.phases import Phases

COMPILE_S = 900.0
"""How long a compilation may explain that no step is finished, in seconds."""

_MODULE = "torch._dynamo.callback"
_logger = logging.getLogger(__name__)


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
