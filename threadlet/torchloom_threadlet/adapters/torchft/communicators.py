"""The communicators of a process group other than gloo, as NCCL's: an abort ends what waits there.

An abort closes NCCL's connections, so that a peer over the network sees an error. By default torch
then ends the peer's process; TORCH_NCCL_ASYNC_ERROR_HANDLING=2 keeps it, and ends the communicator.
"""

import logging
import os
from typing import Any

_HANDLING = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_KEEPS_PROCESS = ("0", "2")  # ErrorHandlingMode's NoHandling and CleanUpOnly

_logger = logging.getLogger(__name__)


class Communicators:
    """The communicators of the present quorum of one process group.

    An error of this process is passed on after the Manager's decision: the collectives that can
    complete have done so, and the Manager makes new communicators before any other step.
    """

    def __init__(self, pg: Any) -> None:
        self._pg = pg
        self._quorum_id = -1
        self._has_failed = False
        self._in_step = True
        self._passes_on = os.environ.get(_HANDLING, "") in _KEEPS_PROCESS
        if not self._passes_on:
            text = "errors are not passed on to peers over %s: set %s=2 on all ranks, otherwise"
            text += " an error of one ends the processes of its peers"
            _logger.warning(text, pg.getBackendName(), _HANDLING)
        self._reconfigure = pg.reconfigure
        pg.reconfigure = self._reconfigured

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
        self._pg.abort()
        return "the process group is aborted"

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
            self._pg.abort()

    def _reconfigured(self, opts: Any) -> Any:
        self._quorum_id = int(opts.uuid)
        return self._reconfigure(opts)
