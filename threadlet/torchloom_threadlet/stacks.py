"""Where a trainer is stuck: the Python stacks of all its threads.

The trainer's half arms a real-time signal at which :mod:`faulthandler` writes the stacks from
C, without the GIL; the sidecar sends it and reads the file both have open.
"""

import contextlib
import faulthandler
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import IO

MAX_STACKS_CHARS = 100_000

_POLL_S = 0.02
_WAIT_S = 2.0


class StackFile:
    """The trainer's half: an unlinked file, and the signal that writes stacks to it."""

    def __init__(self) -> None:
        self.signal = 0
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):
            self._arm()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptor that a sidecar inherits, or none."""
        return () if self._file is None else (self._file.fileno(),)

    def close(self) -> None:
        """Write no stacks any more."""
        if self._file is not None:
            faulthandler.unregister(self.signal)
            self._file.close()
            self._file, self.signal = None, 0

    def _arm(self) -> None:
        import fcntl

        file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the trainer lives
        # The sidecar empties the file after reading; the next stacks must begin at its start.
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
        number = int(signal.SIGRTMAX) - 3
        faulthandler.register(number, file=file, all_threads=True)
        self._file, self.signal = file, number


def own_stacks() -> str:
    """Return the stacks of this process's threads, called from one of them."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read(MAX_STACKS_CHARS).decode(errors="replace")


def stacks_of(pid: int, number: int, descriptor: int) -> str:
    """Return the stacks of process ``pid``, or one sentence that says why there are none.

    Called by the sidecar, in a thread: it waits for the file to stop growing.
    """
    if not _catches(pid, number):
        # The default action of a real-time signal would kill the trainer.
        return "no stacks: the trainer does not catch the signal"
    os.ftruncate(descriptor, 0)
    os.kill(pid, number)
    deadline = time.monotonic() + _WAIT_S
    size = 0
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        grown = os.fstat(descriptor).st_size
        if grown and grown == size:
            break
        size = grown
    text = os.pread(descriptor, MAX_STACKS_CHARS, 0).decode(errors="replace")
    return text or "no stacks: the trainer is stopped or in an uninterruptible system call"


def _catches(pid: int, number: int) -> bool:
    if not number:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
