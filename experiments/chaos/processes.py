"""The processes of one live run: their start, restart, and how they are struck.

A trainer that ends is restarted as a scheduler would.
"""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from experiments.chaos import record
from torchloom_core.live.transport.ports import lasting_port

HERE = Path(__file__).parent
POLL_S = 0.05
START_S = 90.0
FRESH_S = 3.0
LIGHTHOUSE = ("--min_replicas", "1", "--join_timeout_ms", "10000", "--quorum_tick_ms", "100")
HEARTBEAT_TIMEOUT_MS = 1000
MARK = "CHAOS_RUN"

CONFIG = """
[run]
name = "chaos"

[weaver]
state_dir = "{state}"
tick_s = 0.25
command_deadline_s = {deadline_s:g}

[arbiter]
cooldown_s = 0

[policies.silence]

[policies.straggler]
mode = "shadow"
"""
DEADLINE_S = 20.0


def spawn(
    folder: Path,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in a folder, with its output in ``<name>.out`` and ``<name>.err`` there."""
    with (folder / f"{name}.out").open("ab") as out, (folder / f"{name}.err").open("ab") as err:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=start_new_session,
        )


class Place:
    """The processes started in one folder, and their record."""

    def __init__(self, folder: Path, config: str = CONFIG) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.config = folder / "torchloom.toml"
        self.text = config
        self.config.write_text(config.format(state=self.state, deadline_s=DEADLINE_S))
        self.timeline = record.Record(folder / record.TIMELINE)
        self.is_over = False
        """Whether the strikes are over and no process is restarted."""

    def spawn(
        self, name: str, command: list[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a process with its output in ``<name>.out`` and ``<name>.err``."""
        own = {**os.environ, MARK: str(self.folder), **environment}
        return spawn(self.folder, name, command, own, start_new_session=True)

    def left_over(self) -> list[str]:
        """Return the command of every remaining process of this run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ended = process.status() == psutil.STATUS_ZOMBIE
                if not ended and process.environ().get(MARK) == str(self.folder):
                    found.append(f"pid {process.pid}: {' '.join(process.cmdline())}")
        return [line for line in found if str(os.getpid()) != line.split()[1].rstrip(":")]


class Slot:
    """One replica group's place: its trainer is started again whenever it ends."""

    def __init__(
        self,
        place: Place,
        group: str,
        lighthouse: str,
        rng: random.Random,
        wants_standby: Callable[[], bool],
        program: Path = HERE / "trainer.py",
        arguments: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._program = program
        self._arguments = arguments
        self._lighthouse = lighthouse
        self._rng = rng
        self._wants_standby = wants_standby
        self._starts = 0
        self.group = group
        self.standby = False
        self.process: subprocess.Popen[bytes] | None = None
        self.struck = False

    @property
    def name(self) -> str:
        """The present incarnation's name, as in its files."""
        return f"{self.group}.{self._starts}"

    @property
    def pid(self) -> int:
        """The trainer's process id, 0 if none was started."""
        return self.process.pid if self.process else 0

    @property
    def alive(self) -> bool:
        """Whether a trainer runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def stands_by(self) -> bool:
        """Whether the trainer still waits for the command to join."""
        return self.alive and self.standby and not self.events("join")

    @property
    def steps_at(self) -> float:
        """When the trainer last recorded a step, 0 if none in this incarnation."""
        log = self._place.folder / f"{self.name}.jsonl"
        written = self.alive and log.exists() and log.stat().st_size > 0
        return log.stat().st_mtime if written else 0.0

    @property
    def steps(self) -> bool:
        """Whether the trainer has recorded a step recently."""
        return time.time() - self.steps_at < FRESH_S

    @property
    def sidecar(self) -> int:
        """Process id of the trainer's sidecar, 0 if there is none at this moment."""
        if self.process is None:
            return 0
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if "torchloom_threadlet.sidecar" in child.cmdline():
                    return child.pid if child.status() != psutil.STATUS_ZOMBIE else 0
        return 0

    def events(self, event: str) -> list[record.Row]:
        """Return the journal's lines of this event in the present incarnation."""
        journal = record.rows(self._place.folder / f"{self.name}.journal")
        return [row for row in journal if row["event"] == event]

    async def keep_up(self) -> None:
        """Start a trainer, and again after a moment, until the run is over."""
        while not self._place.is_over:
            self._start()
            while self.alive:  # noqa: ASYNC110 - a process
                await asyncio.sleep(POLL_S)
            drained, stood_by = bool(self.events("drain")), self.standby and not self.events("join")
            self._place.timeline.add(
                "end",
                what="trainer",
                group=self.group,
                name=self.name,
                status=self.process.returncode if self.process else None,
                struck=self.struck,
                drained=drained,
                last=last_line(self._place.folder / f"{self.name}.err"),
            )
            await asyncio.sleep(self._rng.uniform(0.3, 2.0))
            self.standby = stood_by or (drained and self._wants_standby())

    def _start(self) -> None:
        self._starts += 1
        self.struck = False
        name = self.name
        command = [sys.executable, str(self._program), "--lighthouse", self._lighthouse]
        command += ["--steps", "1000000000", "--step-ms", "80", "--log", f"{name}.jsonl"]
        command += ["--result", f"{name}.json", "--checkpoint", f"{self.group}.pt"]
        command += self._arguments
        self.process = self._place.spawn(
            name,
            command,
            {
                "TORCHLOOM_JOIN": str(self._place.state / "join.json"),
                "TORCHLOOM_GROUP": self.group,
                "TORCHLOOM_NODE": f"node-{self.group}",
                "TORCHLOOM_ROLE": "standby" if self.standby else "",
                "TORCHLOOM_HEARTBEAT_S": "0.5",
                "CHAOS_JOURNAL": str(self._place.folder / f"{name}.journal"),
                "OMP_NUM_THREADS": "1",
                "RUST_LOG": "error",
            },
        )
        self._place.timeline.add(
            "start",
            what="trainer",
            group=self.group,
            name=name,
            pid=self.process.pid,
            standby=self.standby,
        )


def start_lighthouse(place: Place) -> tuple[subprocess.Popen[bytes], str]:
    """Start torchft's lighthouse; return it and its URL."""
    port = lasting_port("127.0.0.1")
    command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--bind", f"[::]:{port}"]
    command += [*LIGHTHOUSE, "--heartbeat_timeout_ms", str(HEARTBEAT_TIMEOUT_MS)]
    return place.spawn("lighthouse", command, {"RUST_LOG": "error"}), f"http://localhost:{port}"


def strike(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether there was a process to take it."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def last_line(path: Path) -> str:
    """Return the last line of a log, empty if there is none."""
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else ""
