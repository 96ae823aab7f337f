"""A process that outlives us: started in its own session, found again by pid and command line."""

import errno
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from torchloom_core.floor.errors import StateError
from torchloom_core.wire.codec import UNREADABLE

_T = TypeVar("_T")

_PRIVATE_FILE = 0o600
_LOW_PRIORITY = 10
"""A nice value that still leaves a tenth of a processor where all are busy."""

_POLL_S = 0.01
_SETTLED_S = 1.0


def start_detached(
    command: Sequence[str], output: Path, environment: Mapping[str, str] = os.environ
) -> int:
    """Start ``command``, which outlives us, with its output in a fresh file; return its pid."""
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        command[0],
        list(command),
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), write, _PRIVATE_FILE),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def lower_priority(pid: int) -> None:
    """Give a process that leads a session little of the processors and disks if others want them.

    Linux shares the processors out among sessions first (autogroup, see sched(7)), and the nice
    value counts only within one: so the session's own is set as well.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOW_PRIORITY)
    with suppress(OSError):  # without autogroups
        Path(f"/proc/{pid}/autogroup").write_text(str(_LOW_PRIORITY))
    with suppress(OSError, AttributeError, psutil.Error):
        psutil.Process(pid).ionice(psutil.IOPRIO_CLASS_IDLE)


def is_running(pid: int, argument: str) -> bool:
    """Return whether ``pid`` is alive and was started with ``argument``: pids are used again."""
    return _running(pid, argument) is not None


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (SIGSTOP)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def end(pid: int, argument: str, patience_s: float) -> None:
    """Terminate the process; kill it if it is still running after ``patience_s``."""
    process = _running(pid, argument)
    if process is None:
        return
    try:
        for send_signal in (process.terminate, process.kill):
            send_signal()
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline:
                # psutil's own wait counts a zombie, whose parent did not reap it, as running.
                if _running(pid, argument) is None:
                    return
                time.sleep(_POLL_S)
    except psutil.NoSuchProcess:
        return  # it has ended meanwhile
    except psutil.AccessDenied:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None


def read_record(path: Path, record: type[_T]) -> _T | None:
    """Return what was stored of the process that was started last, or None without a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=record)
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as error:
        raise StateError(f"{path}: cannot be read: {error}") from None


def has_ended(child: int) -> bool:
    """Return whether a child process has ended, and reap it."""
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


def _running(pid: int, argument: str) -> psutil.Process | None:
    # If it is our own child, only we can reap it.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):  # no more open files
        process = psutil.Process(pid)
        if argument in _command_line(process):
            return process
    return None


def _command_line(process: psutil.Process) -> list[str]:
    # A starting or ending process briefly has no command line; a kernel thread, which may have
    # got the pid, never has one.
    deadline = time.monotonic() + _SETTLED_S
    while not (arguments := list[str](process.cmdline())) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return arguments
