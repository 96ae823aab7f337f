"""Keeps Monarch's controller process alive when a part of one of its meshes fails."""

import logging
from typing import Any

import monarch.actor
from monarch._src.actor import supervision

from torchloom_threadlet.cleaning import error_line

_logger = logging.getLogger(__name__)


def survive_faults() -> None:
    """Let the controller continue after a failure that none of its actors handles.

    Call it in the controller, before it spawns a mesh. Monarch's own hook ends the process; this
    one logs the failure in one line. The failed call still raises where its result is taken, and
    what to restart is decided there. A hook of the script's own stays, and decides as before.
    """
    if monarch.actor.unhandled_fault_hook is supervision.unhandled_fault_hook:
        monarch.actor.unhandled_fault_hook = _survive


def _survive(failure: Any) -> None:
    try:
        lines = failure.report().strip().splitlines()
        text = " ".join(map(str.strip, lines))
        _logger.warning("monarch: a failure that no actor has handled: %.500s", text)
    except Exception as error:  # noqa: BLE001 - Monarch's
        _logger.warning("monarch: a failure that no actor has handled: %s", error_line(error))
