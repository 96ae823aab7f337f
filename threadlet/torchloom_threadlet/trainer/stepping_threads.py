"""The threads of a script that call ``loom.step``: one in most scripts."""

import logging
import sys
import threading
from typing import Any, NoReturn

SEVERAL = -1

_logger = logging.getLogger(__name__)
_thread = threading.get_ident


class SteppingThreads:
    """The threads that step: ``stepper`` is the one that does, 0 before it has, or ``SEVERAL``."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._dismissed: set[int] = set()
        self.stepper = 0

    def look(self) -> None:
        """Take the first thread that steps as the training thread; log once about a second one."""
        if not self.stepper:
            self.stepper = self._worker.thread = _thread()
        elif self.stepper != SEVERAL:
            self.stepper = SEVERAL
            self._worker.thread = 0
            _logger.warning(
                "loom.step is called from several threads: one thread at a time runs commands, "
                "and a pause stops only that thread"
            )

    def dismiss(self) -> bool:
        """Return False to each thread once, and end a thread that calls again."""
        if _thread() in self._dismissed:
            end_drained(self._worker.identity.worker)
        self._dismissed.add(_thread())
        return False


def end_drained(worker: str) -> NoReturn:
    """End the process of a loop that continues after the drain: it has left the quorum."""
    _logger.warning("%s was drained but its loop continues: exiting with status 0", worker)
    _stop_profiler()
    raise SystemExit(0)


def _stop_profiler() -> None:
    """Stop torch's profiler if it runs: an interpreter that exits while it runs gets SIGSEGV."""
    if "torch.autograd" not in sys.modules:
        return
    try:
        from torch._C import _autograd

        if _autograd._profiler_enabled():
            _autograd._disable_profiler()
    except Exception:
        _logger.debug("cannot stop torch's profiler", exc_info=True)
