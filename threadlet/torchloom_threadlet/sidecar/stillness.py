"""Whether a trainer without progress does anything: its CPU time, its I/O, its stack.

Nothing is measured while steps are finished. The stack is read only while no CPU time is used,
so that the frames do not change meanwhile.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torchloom_core.wire.messages import FieldValue
from torchloom_threadlet.ipc import COMPUTE
from torchloom_threadlet.sidecar.telemetry import Batches, is_stopped, phase_of
from torchloom_threadlet.stacks import StackReader, innermost, stack_of

_SHARE = 0.05
"""Of one core. Threads that only wake up now and then, as torchft's and ours, use less."""

_IO_BYTES_PER_S = 1 << 20


_Done = dict[tuple[str, int], float]
LOOK_S = 1.0
"""The seconds between two looks, and how long a step may take before the first."""

_FIRST_STACK_S = 2.0
_LONGEST_GAP_S = 30.0


class Work:
    """Measures how long a process and its children have done no significant work.

    A thread or child process, such as a compiler, works if it uses a twentieth of a core; so does
    a process that reads or writes 1 MiB/s, such as to save a checkpoint. A computing GPU is not
    seen, but a thread that waits for it mostly spins.

    ``still_s``: seconds without work, 0 while it works and before the first look.
    """

    def __init__(self, psutil: Any, pid: int) -> None:
        self._psutil = psutil
        self._process = psutil.Process(pid)
        self.still_s = 0.0
        self._before: _Done | None = None
        self._looked_s = 0.0

    @classmethod
    def of(cls, pid: int) -> "Work | None":
        """Return a process's measurement, None where psutil is not installed or it has ended."""
        try:
            import psutil
        except ImportError:
            return None
        with contextlib.suppress(psutil.Error):
            return cls(psutil, pid)
        return None

    def forget(self) -> None:
        """Begin anew: the last look is too long ago."""
        self.still_s, self._before = 0.0, None

    def look(self) -> float:
        """Look again, and return ``still_s``."""
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        before, self._before = self._before, dict(self._own())
        if before is None:
            return self.still_s
        works = self._most(self._before, before) >= _SHARE * passed_s
        if not works:  # finding the children reads every process of the host
            children = dict(self._children())
            works = self._most(children, before) >= _SHARE * passed_s
            self._before |= children
        self.still_s = 0.0 if works else self.still_s + passed_s
        return self.still_s

    def _most(self, now: _Done, before: _Done) -> float:
        """Return the largest increase; one without an earlier value counts in full."""
        return max((done - before.get(key, 0.0) for key, done in now.items()), default=0.0)

    def _own(self) -> Iterator[tuple[tuple[str, int], float]]:
        """Yield each thread's CPU time so far, in seconds, and the I/O."""
        with self._ignoring_errors():
            for thread in self._process.threads():
                yield ("thread", thread.id), thread.user_time + thread.system_time
        with self._ignoring_errors():
            times = self._process.cpu_times()
            yield ("ended children", 0), times.children_user + times.children_system
        with self._ignoring_errors():
            io = self._process.io_counters()
            # The I/O threshold corresponds to the CPU threshold.
            yield ("io", 0), (io.read_chars + io.write_chars) * _SHARE / _IO_BYTES_PER_S

    def _children(self) -> Iterator[tuple[tuple[str, int], float]]:
        with self._ignoring_errors():
            for child in self._process.children(recursive=True):
                with self._ignoring_errors():
                    times = child.cpu_times()
                    if child.pid != os.getpid():
                        yield ("child", child.pid), times.user + times.system

    def _ignoring_errors(self) -> contextlib.suppress:
        """Ignore that a process has ended, may not be read, or is not on Linux."""
        return contextlib.suppress(self._psutil.Error, OSError, AttributeError)


class Stillness:
    """Measures how long a trainer has done nothing.

    ``send``: takes the fields of a note ``still``, once two stacks agree.
    """

    def __init__(
        self,
        heartbeat: Batches,
        pid: int,
        stacks: StackReader,
        send: Callable[[Mapping[str, FieldValue]], object],
    ) -> None:
        self._heartbeat = heartbeat
        self._pid = pid
        self._stacks = stacks
        self._send = send
        self._work = Work.of(pid)
        self._progress_ns = -1
        self._next_stack_s = _FIRST_STACK_S
        self._stack = ""
        self._stack_since_s = 0.0
        self._stack_still_s = 0.0

    def gauges(self) -> dict[str, float]:
        """Return ``trainer_cpu_still_s`` and ``trainer_stack_still_s``, where known."""
        gauges: dict[str, float] = {}
        if self._work is not None:
            gauges["trainer_cpu_still_s"] = self._work.still_s
            if self._stacks.works:
                gauges["trainer_stack_still_s"] = self._stack_still_s
        return gauges

    async def run(self) -> None:
        """Look once a second."""
        while self._work is not None:
            await asyncio.sleep(LOOK_S)
            if self._is_stalled():
                await asyncio.to_thread(self._look, self._work)
            else:
                self._work.forget()
                self._forget()

    def _is_stalled(self) -> bool:
        latest = self._heartbeat.latest
        phase = phase_of(latest, time.monotonic_ns())
        waits = phase is not None and phase.name != COMPUTE
        return latest.state == "training" and not waits and self._heartbeat.progress_age_s > LOOK_S

    def _look(self, work: Work) -> None:
        progress_ns = self._heartbeat.latest.progress_ns
        still_s = work.look()
        if progress_ns != self._progress_ns or still_s == 0:
            self._forget()
            self._progress_ns = progress_ns
        elif still_s >= self._next_stack_s and not is_stopped(self._pid):
            self._next_stack_s = still_s + min(max(still_s, _FIRST_STACK_S), _LONGEST_GAP_S)
            self._compare(stack_of(self._stacks.read(), self._heartbeat.latest.thread))

    def _compare(self, stack: str) -> None:
        now_s = time.monotonic()
        if not stack or stack != self._stack:
            self._stack, self._stack_since_s, self._stack_still_s = stack, now_s, 0.0
            return
        first = not self._stack_still_s
        self._stack_still_s = now_s - self._stack_since_s
        if first:
            self._send(
                {"at": innermost(stack), "stack_still_s": self._stack_still_s, "stack": stack}
            )

    def _forget(self) -> None:
        self._next_stack_s = _FIRST_STACK_S
        self._stack, self._stack_still_s = "", 0.0
