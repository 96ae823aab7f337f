"""One act of the demo: a real lighthouse, a Weaver, trainers, and one of them in trouble."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from torchloom_core.cli.demo.processes import (
    START_S,
    Processes,
    kill_tree,
    listens,
)
from torchloom_core.cli.demo.scenario import Place, Scenario, symptoms, write_counters
from torchloom_core.cli.demo.steplog import StepLog
from torchloom_core.errors import StateError

_GOODBYE_S = 15.0
_TORCHFT_LIGHTHOUSE = ("--min_replicas", "1", "--join_timeout_ms", "10000")
_TORCHFT_TIMING = ("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "100")
"""A fifth of torchft's default, which stalls the others for 5 s."""


class Act:
    """One run of the scenario in a folder of its own.

    Attributes
    ----------
    folder : Path
        Where logs, the Weaver's state and results lie.
    acting : bool
        Whether the Weaver may act, and starts its lighthouse; otherwise it runs dry beside
        torchft's own.
    """

    def __init__(self, scenario: Scenario, folder: Path, *, acting: bool) -> None:
        self.scenario, self.folder, self.acting = scenario, folder, acting
        self.logs: dict[str, StepLog] = {}
        self.ill_since_s: float | None = None
        self.ill_at: float | None = None
        self.restarted = False
        self.struck_at: float | None = None
        self._processes = Processes(folder, scenario)

    @property
    def state_dir(self) -> Path:
        """The Weaver's state folder."""
        return self._processes.state_dir

    @property
    def trainers(self) -> dict[str, subprocess.Popen[bytes]]:
        """The trainers' processes, by their group."""
        return self._processes.trainers

    async def play(self, show: Callable[["Act"], None]) -> None:
        """Run from the first process to the last; ``show`` is called several times a second."""
        self.folder.mkdir(parents=True)
        for place in self.scenario.places:
            write_counters(self._counters(place), symptoms(0.0))
            self.logs[place.group] = StepLog(self._processes.log_of(place))
        async with AsyncExitStack() as stack:
            if not self.acting:
                await stack.enter_async_context(self._torchft_lighthouse())
            await stack.enter_async_context(self._processes.weaver(acting=self.acting))
            try:
                for place in self.scenario.places:
                    self._start_trainer(place)
                await self._until_over(show)
            finally:
                self._processes.kill_trainers()

    async def _until_over(self, show: Callable[["Act"], None]) -> None:
        lasting = [p.group for p in self.scenario.places if p.group in self.scenario.survivors]
        started = time.monotonic()
        while any(self.trainers[group].poll() is None for group in lasting):
            for log in self.logs.values():
                log.read()
            self._let_the_node_fall_ill()
            self._start_again_what_was_ended()
            self._check(lasting, time.monotonic() - started)
            show(self)
            await asyncio.sleep(0.1)
        await self._until_the_last_has_left()
        for log in self.logs.values():
            log.read()
        show(self)

    async def _until_the_last_has_left(self) -> None:
        """Wait for the groups that joined late to end, too; standbys wait for ever."""
        for group, trainer in self.trainers.items():
            if self.logs[group].steps and not self.is_frozen(group):
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(trainer.wait, _GOODBYE_S)

    def _check(self, lasting: list[str], elapsed_s: float) -> None:
        for group in lasting:
            self._processes.check(group)
        if elapsed_s > START_S and not any(self.logs[group].steps for group in lasting):
            raise StateError(f"no trainer took a step in {START_S:g} s; see {self.folder}")

    # --- the node that falls ill ---

    def _let_the_node_fall_ill(self) -> None:
        now = time.monotonic()
        sick = self.scenario.sick
        step = max(self.logs[group].step for group in self.scenario.survivors)
        if self.ill_since_s is None:
            if step >= self.scenario.ill_at_step:
                self.ill_since_s, self.ill_at = now, time.time()
            return
        if self.struck_at is not None:
            return
        ill_s = now - self.ill_since_s
        if not self.scenario.freezes:
            write_counters(self._counters(sick), symptoms(ill_s))
        if ill_s >= self.scenario.ill_for_s:
            self.struck_at = time.time()
            if self.scenario.freezes:
                self.trainers[sick.group].send_signal(signal.SIGSTOP)
            else:
                kill_tree(self.trainers[sick.group])

    def is_frozen(self, group: str) -> bool:
        """Whether the group was stopped, and has not been ended since."""
        sick = self.scenario.sick.group
        frozen = self.scenario.freezes and self.struck_at is not None and group == sick
        return frozen and not self.restarted and self.trainers[group].poll() is None

    def _start_again_what_was_ended(self) -> None:
        """Start a trainer again that its sidecar has ended, as ``torchrun --max-restarts`` does."""
        sick = self.scenario.sick
        if not self.scenario.freezes or self.struck_at is None or self.restarted:
            return
        if self.trainers[sick.group].poll() is not None:
            self.restarted = True
            self._start_trainer(sick)

    # --- processes ---

    def _start_trainer(self, place: Place) -> None:
        textfile = {"TORCHLOOM_TEXTFILE": str(self._counters(place))}
        self._processes.start_trainer(place, textfile)

    @asynccontextmanager
    async def _torchft_lighthouse(self) -> AsyncIterator[None]:
        port = self._processes.port
        binary = str(Path(sys.executable).parent / "torchft_lighthouse")
        command = [binary, "--bind", f"[::]:{port}", *_TORCHFT_LIGHTHOUSE, *_TORCHFT_TIMING]
        process = self._processes.spawn("lighthouse", command, {"RUST_LOG": "error"})
        try:
            await self._processes.wait_for(lambda: listens(port), process, "lighthouse")
            yield
        finally:
            process.kill()
            process.wait()

    def _counters(self, place: Place) -> Path:
        return self.folder / f"{place.node}.prom"
