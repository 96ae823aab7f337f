"""One act of the demo: a real lighthouse, a Weaver, trainers, and one of them in trouble."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import psutil

from torchloom_core.cli.demo.scenario import Place, Scenario, symptoms, write_counters
from torchloom_core.cli.demo.steplog import StepLog
from torchloom_core.errors import StateError

_START_S = 60.0
_GOODBYE_S = 15.0
_TORCHFT_LIGHTHOUSE = ("--min_replicas", "1", "--join_timeout_ms", "10000")
_TORCHFT_TIMING = ("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "100")
"""A fifth of torchft's default, which stalls the others for 5 s."""

_OUR_LIGHTHOUSE = """
[lighthouse]                 # heartbeat timeout: torchft's default, 5 s
port = {port}
status_port = 0
join_timeout_s = 10.0
"""


@dataclass
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

    scenario: Scenario
    folder: Path
    acting: bool
    _lighthouse: str = ""
    trainers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    logs: dict[str, StepLog] = field(default_factory=dict)
    ill_since_s: float | None = None
    ill_at: float | None = None
    restarted: bool = False
    struck_at: float | None = None

    @property
    def state_dir(self) -> Path:
        """The Weaver's state folder."""
        return self.folder / "state"

    async def play(self, show: Callable[["Act"], None]) -> None:
        """Run from the first process to the last; ``show`` is called several times a second."""
        self.folder.mkdir(parents=True)
        for place in self.scenario.places:
            write_counters(self._counters(place), symptoms(0.0))
            self.logs[place.group] = StepLog(self.folder / f"{place.group}.jsonl")
        port = _free_port()
        async with AsyncExitStack() as stack:
            if not self.acting:
                await stack.enter_async_context(self._torchft_lighthouse(port))
            await stack.enter_async_context(self._weaver(port))
            try:
                self._lighthouse = f"http://127.0.0.1:{port}"
                for place in self.scenario.places:
                    self._start_trainer(place, self._lighthouse)
                await self._until_over(show)
            finally:
                self._kill_all()

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
        """Wait for the groups that joined late to end, too; stand-bys wait for ever."""
        for group, trainer in self.trainers.items():
            if self.logs[group].steps and not self.is_frozen(group):
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(trainer.wait, _GOODBYE_S)

    def _check(self, lasting: list[str], elapsed_s: float) -> None:
        for group in lasting:
            code = self.trainers[group].poll()
            if code not in (None, 0):
                raise StateError(
                    f"trainer {group} ended with status {code}; see {self.folder / f'{group}.err'}"
                )
        if elapsed_s > _START_S and not any(self.logs[group].steps for group in lasting):
            raise StateError(f"no trainer took a step in {_START_S:g} s; see {self.folder}")

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
                _kill_tree(self.trainers[sick.group])

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
            self._start_trainer(sick, self._lighthouse)

    # --- processes ---

    def _start_trainer(self, place: Place, lighthouse: str) -> None:
        scenario = self.scenario
        command = [sys.executable, "-m", "torchloom_threadlet.demo_trainer"]
        command += ["--lighthouse", lighthouse, "--steps", str(scenario.steps)]
        command += ["--step-ms", str(scenario.step_ms), "--seed", str(scenario.seed)]
        command += ["--log", str(self.logs[place.group].path)]
        command += ["--result", str(self.folder / f"{place.group}.json")]
        environment = {
            "TORCHLOOM_JOIN": str(self.state_dir / "join.json"),
            "TORCHLOOM_GROUP": place.group,
            "TORCHLOOM_RANK": "0",
            "TORCHLOOM_NODE": place.node,
            "TORCHLOOM_RACK": place.rack,
            "TORCHLOOM_ROLE": "standby" if place.standby else "",
            "TORCHLOOM_TEXTFILE": str(self._counters(place)),
            "TORCHLOOM_HEARTBEAT_S": str(scenario.heartbeat_s),
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": "error",
        }
        self.trainers[place.group] = self._spawn(place.group, command, environment)

    def _spawn(
        self, name: str, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.err").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @asynccontextmanager
    async def _torchft_lighthouse(self, port: int) -> AsyncIterator[None]:
        binary = str(Path(sys.executable).parent / "torchft_lighthouse")
        command = [binary, "--bind", f"[::]:{port}", *_TORCHFT_LIGHTHOUSE, *_TORCHFT_TIMING]
        process = self._spawn("lighthouse", command, {"RUST_LOG": "error"})
        try:
            await self._wait_for(lambda: _listens(port), process, "lighthouse")
            yield
        finally:
            process.kill()
            process.wait()

    @asynccontextmanager
    async def _weaver(self, port: int) -> AsyncIterator[None]:
        config = self.folder / "torchloom.toml"
        text = (
            files("torchloom_core.cli.demo")
            .joinpath(self.scenario.config)
            .read_text(encoding="utf-8")
        )
        text = re.sub(r"(?m)^(\[weaver\])$", f'\\1\nstate_dir = "{self.state_dir}"', text)
        text = re.sub(
            r"(?m)^(\[arbiter\])$", f"\\1\ndry_run = {str(not self.acting).lower()}", text
        )
        if self.acting:
            text += _OUR_LIGHTHOUSE.format(port=port)
        config.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "torchloom_core.cli", "weaver", "--config", str(config)]
        process = self._spawn("weaver", command, {})
        try:
            ready = self.state_dir / "join.json"
            await self._wait_for(ready.exists, process, "weaver")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                _kill_tree(process)

    async def _wait_for(
        self, condition: Callable[[], bool], process: subprocess.Popen[bytes], name: str
    ) -> None:
        deadline = time.monotonic() + _START_S
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                raise StateError(f"the {name} did not start; see {self.folder / f'{name}.err'}")
            await asyncio.sleep(0.05)

    def _kill_all(self) -> None:
        for process in self.trainers.values():
            _kill_tree(process)

    def _counters(self, place: Place) -> Path:
        return self.folder / f"{place.node}.prom"


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all it started, with SIGKILL, as a node dies."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def _free_port() -> int:
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
