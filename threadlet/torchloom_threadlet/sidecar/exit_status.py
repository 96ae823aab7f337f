"""Wait for the end of the trainer's process, and read its exit status."""

import array
import asyncio
import contextlib
import os
from pathlib import Path

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
