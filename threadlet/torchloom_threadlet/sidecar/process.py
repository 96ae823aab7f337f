"""The sidecar's own process: what it inherits, its environment, and how it ends."""

import logging
import os
from typing import NamedTuple

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import plain_line
from torchloom_threadlet.sidecar.connection import OtherRunError

_logger = logging.getLogger(__name__)


class Process(NamedTuple):
    """The trainer's process: its id, and what was inherited from it, -1 for nothing.

    ``pidfd``: a pidfd of the trainer itself, through which its exit status can be read at any time.
    """

    pid: int
    stacks_fd: int = -1
    pidfd: int = -1


def close_stderr() -> None:
    """Close the trainer's stderr: its reader waits for its end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    os.close(nothing)


def seconds_from(variable: str, default: float) -> float:
    """Return a number of seconds from the environment; a wrong one is logged, and the default."""
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0.0
    if seconds > 0:
        return seconds
    _logger.warning("%s: need a number of seconds > 0, was %r", variable, text)
    return default


def give_up(error: BaseException) -> None:
    """End this process with one line: the link starts another sidecar."""
    if isinstance(error, MessageError | OtherRunError):
        _logger.error("the sidecar ends: %s", plain_line(str(error)))
    else:
        _logger.error("the sidecar ends because of an internal error", exc_info=error)
    os._exit(1)
