"""Whether a trainer without progress does anything: its CPU time, its I/O, its stack.

Nothing is measured while steps are finished. The stack is read only while no CPU time is used,
so that the frames do not change meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from torchloom_core.wire.messages import FieldValue
from torchloom_threadlet.ipc import COMPUTE
from torchloom_threadlet.sidecar.telemetry import Batches
from torchloom_threadlet.sidecar.trainer_state import is_stopped, phase_of
from torchloom_threadlet.sidecar.work import Work
from torchloom_threadlet.stacks import StackReader, innermost, stack_of

LOOK_S = 1.0
"""The seconds between two looks, and how long a step may take before the first."""

_FIRST_STACK_S = 2.0
_LONGEST_GAP_S = 30.0


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
