"""The processes of one live run: a lighthouse, replica groups, and optionally a Weaver."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.chaos import record
from experiments.chaos.processes import spawn
from experiments.lighthouse.trainer import JOURNAL
from torchloom_core.demos.steplog import StepLog
from torchloom_core.live.transport.ports import lasting_port

HERE = Path(__file__).parent
READY_S = 90.0
JOIN_TIMEOUT_MS = 20_000
HEARTBEAT_S = 0.1
"""How often sidecars report where a Weaver steers."""

_POLL_S = 0.02


class NotReadyError(Exception):
    """The run did not start training, or did not continue after a strike."""


@dataclass(frozen=True)
class Arm:
    """The lighthouse, the heartbeat timeout, and whether a Weaver steers."""

    name: str
    active: bool
    heartbeat_timeout_ms: int = 5000
    steered: bool = False


class Lighthouse:
    """A lighthouse that may be ended and started again at its address."""

    def __init__(self, folder: Path, arm: Arm) -> None:
        self._folder = folder
        self._arm = arm
        self._starts = 0
        self.port = lasting_port("127.0.0.1")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where Managers connect."""
        return f"http://localhost:{self.port}"

    def command(self) -> list[str]:
        """Return what starts it; both take the same options."""
        program = Path(sys.executable)
        if self._arm.active:
            started = [str(program), str(HERE / "mortal.py"), "lighthouse"]
            started += ["--state", str(self._folder / "lighthouse.json"), "--status_bind", ""]
        else:
            started = [str(program.with_name("torchft_lighthouse"))]
        started += ["--bind", f"[::]:{self.port}", "--min_replicas", "1"]
        started += ["--join_timeout_ms", str(JOIN_TIMEOUT_MS), "--quorum_tick_ms", "100"]
        return [*started, "--heartbeat_timeout_ms", str(self._arm.heartbeat_timeout_ms)]

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.process = self._started(self.command())
        until(self._listens, "lighthouse")

    def stand_by(self) -> "subprocess.Popen[bytes]":
        """Start another that waits until this one has ended."""
        process = self._started([*self.command(), "--standby"])
        waits = self._folder / f"lighthouse-{self._starts}.err"
        until(lambda: "standby: waiting" in waits.read_text(), "standby")
        return process

    def _started(self, command: list[str]) -> "subprocess.Popen[bytes]":
        self._starts += 1
        return _spawn(self._folder, f"lighthouse-{self._starts}", command, {})

    def kill_as_it_answers(self) -> None:
        """Have it end once it has answered one of several members of a quorum."""
        if self.process is not None:
            self.process.send_signal(signal.SIGUSR2)
            self.process.wait()

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("localhost", self.port), timeout=1):
            return True
        return False


class Trainer:
    """One incarnation of a replica group."""

    def __init__(self, folder: Path, name: str, url: str, environment: dict[str, str]) -> None:
        self.name = name
        self.group = name.partition(".")[0]
        self._journal = folder / f"{name}.journal"
        self._log = StepLog(folder / f"{name}.jsonl")
        command = [sys.executable, str(HERE / "trainer.py"), "--group", self.group]
        command += ["--lighthouse", url, "--steps", "1000000000", "--log", f"{name}.jsonl"]
        command += ["--result", f"{name}.result.json", "--checkpoint", f"{name}.pt"]
        own = {JOURNAL: str(self._journal), "OMP_NUM_THREADS": "1", **environment}
        self.process = _spawn(folder, name, command, own)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The steps so far, ``t`` is when each ended."""
        self._log.read()
        return self._log.steps

    def journal(self, field: str) -> list[dict[str, Any]]:
        """Return the journal's lines that have ``field``."""
        return [line for line in record.rows(self._journal) if field in line]

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process.poll() is None

    def strike(self, number: signal.Signals) -> float:
        """Send a signal, and return when."""
        now_s = time.time()
        self.process.send_signal(number)
        return now_s


class Run:
    """A lighthouse and the groups that train by it; made by :func:`started`."""

    def __init__(self, folder: Path, arm: Arm, lighthouse: Lighthouse) -> None:
        self.lighthouse = lighthouse
        self.trainers: dict[str, Trainer] = {}
        self.ended: list[Trainer] = []
        self._folder = folder
        self._starts = 0
        self._environment = {}
        if arm.steered:
            self._environment["TORCHLOOM_JOIN"] = str(folder / "state" / "join.json")
            self._environment["TORCHLOOM_HEARTBEAT_S"] = str(HEARTBEAT_S)

    def drain(self, group: str) -> None:
        """Have the Weaver drain a group."""
        words = ["-m", "torchloom_core.cli", "drain", group]
        subprocess.run([sys.executable, *words], cwd=self._folder, check=True, capture_output=True)

    def add(self, group: str) -> Trainer:
        """Start a group, or its next incarnation."""
        self._starts += 1
        name = f"{group}.{self._starts}"
        if group in self.trainers:
            self.ended.append(self.trainers[group])
        environment = {**self._environment, "TORCHLOOM_NODE": f"node-{group}"}
        trainer = Trainer(self._folder, name, self.lighthouse.url, environment)
        self.trainers[group] = trainer
        return trainer

    @property
    def incarnations(self) -> list[Trainer]:
        """Every incarnation of every group."""
        return [*self.ended, *self.trainers.values()]

    @property
    def alive(self) -> list[Trainer]:
        """Those whose process runs."""
        return [trainer for trainer in self.trainers.values() if trainer.alive]

    def all_train(
        self,
        after_s: float = 0.0,
        steps: int = 1,
        wait_s: float = READY_S,
        groups: Sequence[Trainer] = (),
    ) -> None:
        """Wait until ``groups`` have committed ``steps`` together since ``after_s``.

        By default all that are alive.
        """
        groups = groups or self.alive

        def together() -> bool:
            return all(
                sum(
                    row["committed"] and row["participants"] == len(groups)
                    for row in trainer.rows[-4 * steps :]
                    if row["t"] > after_s
                )
                >= steps
                for trainer in groups
            )

        until(together, f"{len(groups)} groups that train together", wait_s)


@contextmanager
def started(folder: Path, arm: Arm, groups: int) -> Iterator[Run]:
    """Start all of it, wait until all groups train together, and end it afterwards."""
    folder.mkdir(parents=True)
    lighthouse = Lighthouse(folder, arm)
    run = Run(folder, arm, lighthouse)
    weaver = None
    try:
        if arm.steered:
            weaver = _start_weaver(folder, lighthouse.port)
        else:
            lighthouse.start()
        for number in range(groups):
            run.add(f"g{number}")
        run.all_train()
        yield run
    finally:
        processes = [trainer.process for trainer in run.incarnations]
        processes += [p for p in (lighthouse.process, weaver) if p is not None]
        for process in processes:
            _end(process)


def until(what: Callable[[], bool], name: str, wait_s: float = READY_S) -> None:
    """Wait until it is true."""
    end_s = time.monotonic() + wait_s
    while not what():
        if time.monotonic() > end_s:
            raise NotReadyError(f"no {name} after {wait_s:g} s")
        time.sleep(_POLL_S)


def _start_weaver(folder: Path, port: int) -> "subprocess.Popen[bytes]":
    text = (HERE / "torchloom.toml").read_text()
    (folder / "torchloom.toml").write_text(text.replace("port = 29510", f"port = {port}"))
    process = _spawn(folder, "weaver", [sys.executable, "-m", "torchloom_core.cli", "weaver"], {})
    until(lambda: "is ready" in (folder / "weaver.out").read_text(), "Weaver")
    return process


def _spawn(
    folder: Path, name: str, command: list[str], environment: dict[str, str]
) -> "subprocess.Popen[bytes]":
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLOOM_JOIN")}
    return spawn(folder, name, command, {**inherited, "RUST_LOG": "error", **environment})


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and what it started."""
    children = []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for child in children:
        with suppress(psutil.Error):
            child.kill()
