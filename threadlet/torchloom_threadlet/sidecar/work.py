"""Whether a process works: CPU time of its threads and children, and what it reads and writes."""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

_SHARE = 0.05
"""Of one core. The threads that only wake up now and then, as torchft's and ours, use less."""

_IO_BYTES_PER_S = 1 << 20


_Done = dict[tuple[str, int], float]


class Work:
    """Knows since when a process and what it started have done nothing worth mentioning.

    One thread that uses a twentieth of a core works, and so does a child process, as a compiler;
    so does who reads or writes a MiB a second, as to save a checkpoint. A GPU that computes is not
    seen; who waits for it mostly spins.

    Attributes
    ----------
    still_s : float
        Seconds without work, 0 while it works and before the first look.
    """

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._process = psutil.Process(pid)
        self.still_s = 0.0
        self._before: _Done | None = None
        self._looked_s = 0.0

    @classmethod
    def of(cls, pid: int) -> "Work | None":
        """Return what watches a process, None where psutil is not installed or it has ended."""
        try:
            import psutil
        except ImportError:
            return None
        with contextlib.suppress(psutil.Error):
            return cls(psutil, pid)
        return None

    def forget(self) -> None:
        """Begin anew: what was seen is too long ago."""
        self.still_s, self._before = 0.0, None

    def look(self) -> float:
        """Look again, and return ``still_s``."""
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        before, self._before = self._before, dict(self._own())
        if before is None:
            return self.still_s
        works = self._most(self._before, before) >= _SHARE * passed_s
        if not works:  # to find the children takes a look at every process of the host
            children = dict(self._children())
            works = self._most(children, before) >= _SHARE * passed_s
            self._before |= children
        self.still_s = 0.0 if works else self.still_s + passed_s
        return self.still_s

    def _most(self, now: _Done, before: _Done) -> float:
        """Return the most that one of them did; who was not there before did all of it."""
        return max((done - before.get(key, 0.0) for key, done in now.items()), default=0.0)

    def _own(self) -> Iterator[tuple[tuple[str, int], float]]:
        """Yield what each thread has done so far, in seconds of CPU time, and what was moved."""
        with self._bearing():
            for thread in self._process.threads():
                yield ("thread", thread.id), thread.user_time + thread.system_time
        with self._bearing():
            times = self._process.cpu_times()
            yield ("ended children", 0), times.children_user + times.children_system
        with self._bearing():
            io = self._process.io_counters()
            # The least that counts stands for the least share of a core.
            yield ("io", 0), (io.read_chars + io.write_chars) * _SHARE / _IO_BYTES_PER_S

    def _children(self) -> Iterator[tuple[tuple[str, int], float]]:
        with self._bearing():
            for child in self._process.children(recursive=True):
                with self._bearing():
                    times = child.cpu_times()
                    if child.pid != os.getpid():
                        yield ("child", child.pid), times.user + times.system

    def _bearing(self) -> contextlib.suppress:
        """Bear that a process has ended, may not be looked at, or is none of Linux."""
        return contextlib.suppress(self._psutil.Error, OSError, AttributeError)
