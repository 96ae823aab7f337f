"""One act of the demo: a lighthouse, a Weaver, and trainers of which one fails."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from torchloom_core.demos.processes import START_S, Processes, kill_tree, listens
from torchloom_core.demos.scenario import Place, Scenario, counters_after, write_counters
from torchloom_core.floor.errors import StateError

_TORCHFT_LIGHTHOUSE = ("--min_replicas", "1", "--join_timeout_ms", "10000")
_TORCHFT_TIMING = ("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "100")
"""A fifth of torchft's default heartbeat timeout, which stalls the other groups for 5 s."""


class Act:
    """One run of the scenario in a folder of its own.

    If ``acting``, the Weaver acts and runs the lighthouse; otherwise it only watches, beside
    torchft's lighthouse.
    """

    def __init__(self, scenario: Scenario, folder: Path, *, acting: bool) -> None:
        self.scenario, self.acting = scenario, acting
        self.processes = Processes(folder, scenario)
        self.logs, self.trainers = self.processes.logs, self.processes.trainers
        self.degraded_since_s: float | None = None
        self.degraded_at: float | None = None
        self.restarted = False
        self.failed_at: float | None = None

    async def play(self, show: Callable[["Act"], None]) -> None:
        """Play the act to its end; ``show`` is called several times a second."""
        for place in self.scenario.places:
            write_counters(self._counters(place), counters_after(0.0))
        async with AsyncExitStack() as stack:
            if not self.acting:
                await stack.enter_async_context(self._torchft_lighthouse())
            await stack.enter_async_context(self.processes.weaver(acting=self.acting))
            for place in self.scenario.places:
                self._start_trainer(place)
            await self._until_over(show)

    async def _until_over(self, show: Callable[["Act"], None]) -> None:
        lasting, started = self.scenario.survivors, time.monotonic()
        while any(self.trainers[group].poll() is None for group in lasting):
            self.processes.read_logs()
            self._advance_failure()
            self._restart_ended_trainer()
            for group in lasting:
                self.processes.check(group)
            late = time.monotonic() - started > START_S
            if late and not any(self.logs[group].steps for group in lasting):
                folder = self.processes.folder
                raise StateError(f"no trainer took a step in {START_S:g} s; see {folder}")
            show(self)
            await asyncio.sleep(0.1)
        for group in self.trainers:  # standbys wait for ever
            if self.logs[group].steps and not self.is_frozen(group):
                await self.processes.end_of(group)
        self.processes.read_logs()
        show(self)

    # --- the failing node ---

    def _advance_failure(self) -> None:
        now = time.monotonic()
        failing = self.scenario.failing
        step = max(self.logs[group].step for group in self.scenario.survivors)
        if self.degraded_since_s is None:
            if step >= self.scenario.degrades_at_step:
                self.degraded_since_s, self.degraded_at = now, time.time()
            return
        if self.failed_at is not None:
            return
        degraded_s = now - self.degraded_since_s
        if not self.scenario.freezes:
            write_counters(self._counters(failing), counters_after(degraded_s))
        if degraded_s >= self.scenario.degrades_for_s:
            self.failed_at = time.time()
            if self.scenario.freezes:
                self.trainers[failing.group].send_signal(signal.SIGSTOP)
            else:
                kill_tree(self.trainers[failing.group])

    def is_frozen(self, group: str) -> bool:
        """Whether the group was frozen and has not been ended since."""
        failing = self.scenario.failing.group
        frozen = self.scenario.freezes and self.failed_at is not None and group == failing
        return frozen and not self.restarted and self.trainers[group].poll() is None

    def _restart_ended_trainer(self) -> None:
        """Restart a trainer that its sidecar has ended, as ``torchrun --max-restarts`` does."""
        failing = self.scenario.failing
        if not self.scenario.freezes or self.failed_at is None or self.restarted:
            return
        if self.trainers[failing.group].poll() is not None:
            self.restarted = True
            self._start_trainer(failing)

    # --- processes ---

    def _start_trainer(self, place: Place) -> None:
        textfile = {"TORCHLOOM_TEXTFILE": str(self._counters(place))}
        self.processes.start_trainer(place, textfile)

    @asynccontextmanager
    async def _torchft_lighthouse(self) -> AsyncIterator[None]:
        port = self.processes.port
        binary = str(Path(sys.executable).parent / "torchft_lighthouse")
        command = [binary, "--bind", f"[::]:{port}", *_TORCHFT_LIGHTHOUSE, *_TORCHFT_TIMING]
        process = self.processes.spawn("lighthouse", command, {"RUST_LOG": "error"})
        try:
            await self.processes.wait_for(lambda: listens(port), process, "lighthouse")
            yield
        finally:
            process.kill()
            process.wait()

    def _counters(self, place: Place) -> Path:
        return self.processes.folder / f"{place.node}.prom"
