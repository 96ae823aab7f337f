"""The communicators of a process group other than gloo, as NCCL's: an abort ends what waits there.

An abort closes NCCL's connections, and a peer over the network sees an error. NCCL raises none on
the host: torch's watchdog finds it. torchft does not ask the watchdog: it would wait for its own
timeout, or commit a step without its sum if the watchdog itself has aborted. So the watchdog is
asked here, and its first error aborts and fails the step.
"""

import contextlib
import logging
import os
import threading
import time
from typing import Any

from torch._C._distributed_c10d import ErrorType
from torchft.process_group import ProcessGroup

from torchloom_threadlet.cleaning import error_line
from torchloom_threadlet.compression.modes import innermost

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_SETTINGS = {
    _HANDLING: ("0", "2"),  # ErrorHandlingMode's NoHandling and CleanUpOnly
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": ("0",),
    "TORCH_NCCL_DUMP_ON_TIMEOUT": ("0",),
}
"""With others, torch's watchdog ends the process after an error.

It first blocks new collectives for a minute, and its monitor ends the process eight minutes later.
"""

_POLL_S = 0.1
_ABORT_S = 5.0

_logger = logging.getLogger(__name__)


class Communicators:
    """The communicators of the present quorum of one process group.

    An error of this process is passed on after the Manager's decision: the collectives that can
    complete have done so, and the Manager makes new communicators before any other step.

    Raises TypeError if the process group has no abort, as torchft's ProcessGroupBabyNCCL.
    """

    def __init__(self, pg: Any) -> None:
        self._pg, self._inner = pg, innermost(pg)
        name = pg.getBackendName()
        if getattr(type(self._inner), "abort", None) is ProcessGroup.abort:
            raise TypeError(f"{name} has no abort")
        self._quorum_id = -1
        self._has_failed = False
        self._in_step = True
        missing = [key for key, good in _SETTINGS.items() if os.environ.get(key) not in good]
        self._passes_on = _HANDLING not in missing
        if missing:
            settings = " ".join(f"{key}={_SETTINGS[key][0]}" for key in missing)
            text = "a failed collective over %s may block or end its ranks: set %s on all ranks"
            _logger.warning(text, name, settings)
        self._reconfigure, self._errored = pg.reconfigure, self._inner.errored
        pg.reconfigure, self._inner.errored = self._reconfigured, self._errored_anywhere

    def refusal(self, quorum_id: int) -> str:
        """Return why the communicators of this quorum cannot be aborted; "" if they can.

        An earlier quorum's are gone: nothing waits in them any more.
        """
        if quorum_id > self._quorum_id:
            return f"need the present quorum, {self._quorum_id}, was {quorum_id}"
        return ""

    def cut(self, quorum_id: int) -> str:
        """Abort the communicators of this quorum: the step fails, and the Manager makes new ones.

        From any thread; the training thread is released from a collective.
        """
        if quorum_id != self._quorum_id:
            return f"quorum {quorum_id} is over already, the present one is {self._quorum_id}"
        return f"the process group is {'' if self._abort_in_time() else 'being '}aborted"

    def pass_error_on(self) -> None:
        """Record that this process has failed in this step."""
        self._has_failed |= self._in_step

    def begin_step(self) -> None:
        """Take errors from now on as those of this step."""
        self._in_step = True

    def end_step(self) -> None:
        """Abort after a step that failed here, so that peers do not wait for this process."""
        self._in_step = False
        failed, self._has_failed = self._has_failed, False
        if failed and self._passes_on:
            self._abort_in_time()

    def _reconfigured(self, opts: Any) -> Any:
        self._quorum_id = int(opts.uuid)
        configured = self._reconfigure(opts)
        native = getattr(self._inner, "_pg", None)
        # Where an error ends the process, this one's abort would end its peers'.
        if self._passes_on and self._error_of(native) is not None:
            name = "torchloom-errors"
            watch = threading.Thread(target=self._watch, args=(native,), name=name, daemon=True)
            with contextlib.suppress(RuntimeError):  # a limit of the system's
                watch.start()
        return configured

    def _watch(self, native: Any) -> None:
        """Abort as soon as torch finds an error in these communicators, as long as they are used.

        The last reference to them ends here, too: that waits for the watchdog.
        """
        while getattr(self._inner, "_pg", None) is native:
            if error := self._error_of(native):
                _logger.warning("aborting the collectives of this quorum: %s", error)
                return self._abort()
            time.sleep(_POLL_S)

    def _errored_anywhere(self) -> Exception | None:
        """Return torchft's error, which waits for the device, else what torch has found."""
        error: Exception | None = self._errored()
        found = self._error_of(getattr(self._inner, "_pg", None))
        return error or (RuntimeError(found) if found else None)

    @staticmethod
    def _error_of(native: Any) -> str | None:
        """Return the error that torch has found in a process group of its own; "" without one.

        None if it cannot be asked: only NCCL's can.
        """
        try:
            backends = [native._get_backend(device) for device in native._device_types]
            errors = [one.get_error() for one in backends if hasattr(one, "get_error")]
        except Exception:  # noqa: BLE001 - aborted already, or private parts that have changed
            return None
        failed = [error.name for error in errors if error != ErrorType.SUCCESS]
        if failed:
            return f"torch has found {failed[0]} in a collective"
        return "" if errors else None

    def _abort_in_time(self) -> bool:
        """Abort, and wait for it for five seconds: NCCL's may hang. Return whether it has ended."""
        aborts = threading.Thread(target=self._abort, name="torchloom-abort", daemon=True)
        try:
            aborts.start()
        except RuntimeError:  # a limit of the system's
            self._abort()
            return True
        aborts.join(_ABORT_S)
        return not aborts.is_alive()

    def _abort(self) -> None:
        try:
            self._pg.abort()
        except Exception as error:  # noqa: BLE001 - NCCL's abort may fail, or not end
            _logger.warning("cannot abort the process group: %s", error_line(error))
