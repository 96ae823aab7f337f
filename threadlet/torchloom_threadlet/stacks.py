"""The Python stacks of all threads of a trainer, to see where it hangs.

The trainer's half arms a real-time signal at which :mod:`faulthandler` writes the stacks from
C, without the GIL; the sidecar sends it and reads the file that both have open.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

MAX_STACKS_CHARS = 100_000

_POLL_S = 0.02
_WAIT_S = 2.0
_THREAD = re.compile(r"\s*(?:Current thread|Thread) 0x([0-9a-f]+)", re.IGNORECASE)
_FRAME = re.compile(r'^  File "([^"]*)", line (\d+) in (.*)$', re.MULTILINE)


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
        """Stop writing stacks."""
        if self._file is not None:
            faulthandler.unregister(self.signal)
            self._file.close()
            self._file, self.signal = None, 0

    def _arm(self) -> None:
        import fcntl

        file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the trainer runs
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


class StackReader:
    """The sidecar's half: has the trainer write its stacks, one reading at a time.

    ``number``, ``descriptor``: the signal at which it writes them, and the file it writes them to.
    ``thread``: the native id of a thread that may be interrupted; 0: the system chooses one.
    """

    def __init__(self, pid: int, number: int, descriptor: int, thread: int = 0) -> None:
        self._pid = pid
        self._number = number
        self._descriptor = descriptor
        self._thread = thread
        self._lock = threading.Lock()

    @property
    def works(self) -> bool:
        """Whether the trainer catches the signal: its default action would kill it."""
        return _catches(self._pid, self._number)

    def read(self) -> str:
        """Return the stacks, or one sentence on why there are none.

        Call it in a thread of its own: it waits for the file to stop growing.
        """
        with self._lock:
            if not self.works:
                return "no stacks: the trainer does not catch the signal"
            os.ftruncate(self._descriptor, 0)
            _send(self._pid, self._thread, self._number)
            deadline = time.monotonic() + _WAIT_S
            size = 0
            while time.monotonic() < deadline:
                time.sleep(_POLL_S)
                grown = os.fstat(self._descriptor).st_size
                if grown and grown == size:
                    break
                size = grown
            text = os.pread(self._descriptor, MAX_STACKS_CHARS, 0).decode(errors="replace")
        return text or "no stacks: the trainer is stopped or in an uninterruptible system call"


def stack_of(stacks: str, thread: int) -> str:
    """Return one thread's part of faulthandler's output: the main thread's if it is 0.

    Empty if the thread is not in it.
    """
    parts = {
        int(found[1], 16): part for part in stacks.split("\n\n") if (found := _THREAD.match(part))
    }
    return parts.get(thread, "") if thread else next(reversed(parts.values()), "")


def innermost(stack: str) -> str:
    """Return a stack's innermost frame, such as ``train.py:12 in step``; empty if there is none."""
    found = _FRAME.search(stack)
    return f"{Path(found[1]).name}:{found[2]} in {found[3]}" if found else ""


def _send(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread: one to the process would interrupt the main thread's call."""
    to_thread = getattr(ctypes.CDLL(None), "tgkill", None)
    if not thread or to_thread is None or to_thread(pid, thread, number) != 0:
        os.kill(pid, number)


def _catches(pid: int, number: int) -> bool:
    if not number:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
