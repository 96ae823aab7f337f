"""A process that outlives us: started in a session of its own, found again by pid and command."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_PRIVATE_FILE = 0o600
_POLL_S = 0.01


def start_detached(command: Sequence[str], output: Path) -> int:
    """Start ``command`` with its output in a fresh file, and return its pid.

    The process gets no signal meant for us (Ctrl-C) and goes on when we are killed.
    """
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), write, _PRIVATE_FILE),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def is_running(pid: int, argument: str) -> bool:
    """Return whether ``pid`` is a live process that was started with ``argument``.

    A pid is used again after its process ended; its command line tells the two apart.
    """
    # If it is our own child, a zombie would look alive.
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    command = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self").exists():
        try:
            return argument.encode() in command.read_bytes().split(b"\0")
        except OSError:
            return False
    shown = subprocess.run(
        ["ps", "-ww", "-o", "command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return argument in shown.stdout


def end(pid: int, argument: str, patience_s: float) -> None:
    """Ask the process to end; kill it when it has not after ``patience_s``."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        if not is_running(pid, argument):
            return
        with suppress(ProcessLookupError):  # it has ended since we looked
            os.kill(pid, request)
        deadline = time.monotonic() + patience_s
        while is_running(pid, argument) and time.monotonic() < deadline:
            time.sleep(_POLL_S)


def has_ended(child: int) -> bool:
    """Return whether a process we started has ended; its exit status is taken."""
    try:
        return os.waitpid(child, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True
