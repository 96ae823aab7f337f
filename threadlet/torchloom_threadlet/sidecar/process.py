"""The sidecar's own process, and the trainer's: what is inherited, and how each ends."""

import array
import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import NamedTuple

from torchloom_core.floor.errors import MessageError
from torchloom_core.floor.plain_text import plain_line
from torchloom_threadlet.sidecar.connection import OtherRunError

_logger = logging.getLogger(__name__)
_POLL_S = 0.5
_STATUS_TRIES = 20
_STATUS_WAIT_S = 0.05

# From linux/pidfd.h (6.15): _IOWR(0xFF, 11, struct pidfd_info), and the offset of exit_code.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_INFO_BYTES = 64
_EXIT_CODE_WORD = 15
_STATE_FIELD = 0
_EXIT_CODE_FIELD = 49


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


async def wait_for_death(pid: int, pidfd: int = -1) -> int | None:
    """Return the exit code of process ``pid`` once it ends, or minus the signal number.

    None if its parent reaped it on a kernel that does not store the status. ``pidfd``, if
    given, is the process's own; it may have ended already.
    """
    try:
        descriptor = pidfd if pidfd >= 0 else os.pidfd_open(pid)
    except (OSError, AttributeError):
        while os.getppid() == pid:  # noqa: ASYNC110 - polling is the only way
            await asyncio.sleep(_POLL_S)
        return None
    try:
        if pidfd >= 0 or os.getppid() == pid:
            await _readable(descriptor)
        for _ in range(_STATUS_TRIES):
            status = status_of(descriptor, pid)
            if status is not None:
                return status
            await asyncio.sleep(_STATUS_WAIT_S)
        return None
    finally:
        os.close(descriptor)


def status_of(descriptor: int, pid: int) -> int | None:
    """Return the exit status of a pidfd's process, as :func:`wait_for_death` does."""
    status = _pidfd_status(descriptor)
    if status is None:
        status = _zombie_status(pid)
    return None if status is None else os.waitstatus_to_exitcode(status)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)


def _pidfd_status(descriptor: int) -> int | None:
    """Ask the kernel, which stores the status of a reaped process as long as its pidfd is open."""
    import fcntl

    info = array.array("I", bytes(_INFO_BYTES))
    info[0] = _PIDFD_INFO_EXIT
    with contextlib.suppress(OSError):
        fcntl.ioctl(descriptor, _PIDFD_GET_INFO, info)
        if info[0] & _PIDFD_INFO_EXIT:
            return info[_EXIT_CODE_WORD]
    return None


def _zombie_status(pid: int) -> int | None:
    """Read the status of a process that is not reaped yet."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[_STATE_FIELD] == "Z":
            return int(fields[_EXIT_CODE_FIELD])
    return None
