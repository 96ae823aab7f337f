"""Start and end the processes of a demo, a Weaver and trainers, in one folder."""

import asyncio
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from pathlib import Path

import psutil

from torchloom_core.demos.marks import VARIABLE, own_mark
from torchloom_core.demos.scenario import Place, Training
from torchloom_core.demos.steplog import StepLog
from torchloom_core.floor.errors import StateError
from torchloom_core.live.transport.ports import lasting_port

START_S = 60.0
_LEAVE_S = 15.0
_PR_SET_PDEATHSIG = 1

_OUR_LIGHTHOUSE = """
[lighthouse]                 # heartbeat timeout: torchft's default, 5 s
host = "{host}"
port = {port}
status_port = 0
join_timeout_s = 10.0
"""


class Loopback:
    """The network of a demo on one host: all processes use loopback."""

    host = "127.0.0.1"
    """Address on which broker and lighthouse listen."""

    def hub(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` on the host of broker and lighthouse."""
        return list(command)

    def trainer(self, at: int, command: Sequence[str]) -> list[str]:
        """Return the command that runs the trainer of place ``at``, with its options."""
        return list(command)

    def environment(self, at: int) -> Mapping[str, str]:
        """Return environment variables for that trainer."""
        return {}


class Processes:
    """The processes in a demo's folder; ``trainers`` and their step ``logs`` are by group.

    ``config`` and ``state_dir`` are the Weaver's.
    """

    def __init__(self, folder: Path, training: Training, network: Loopback | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config, self.state_dir = folder / "torchloom.toml", folder / "state"
        self.logs = {place.group: StepLog(self._log_of(place)) for place in training.places}
        self.trainers: dict[str, subprocess.Popen[bytes]] = {}
        self._training = training
        self._network = network or Loopback()

    @cached_property
    def port(self) -> int:
        """The lighthouse's port."""
        return lasting_port("::")

    @property
    def trajectory(self) -> Path:
        """The record of the run."""
        # Imported here: the threads of pyarrow would delay the end of a demo that is killed.
        from torchloom_core.live.trajectory.layout import run_folder

        return run_folder(self.state_dir, "demo")

    def _log_of(self, place: Place) -> Path:
        return self.folder / f"{place.group}.jsonl"

    def read_logs(self) -> None:
        """Read the steps since the last call."""
        for log in self.logs.values():
            log.read()

    def all_train(self, steps: int, since: float = 0.0) -> bool:
        """Return whether all groups have made this many steps together since that moment."""
        return all(
            len(rows := log.steps[-steps:]) == steps
            and all(row["participants"] == len(self.logs) for row in rows)
            and rows[0]["t"] > since
            for log in self.logs.values()
        )

    def start_trainer(self, place: Place, environment: Mapping[str, str]) -> None:
        """Start or restart a group's trainer."""
        training, at = self._training, self._training.places.index(place)
        command = [sys.executable, "-m", "torchloom_threadlet.demo_trainer"]
        command += ["--lighthouse", f"http://{self._network.host}:{self.port}"]
        command += ["--steps", str(training.steps), "--step-ms", str(training.step_ms)]
        command += ["--seed", str(training.seed), "--log", str(self._log_of(place))]
        command += ["--result", str(self.folder / f"{place.group}.json")]
        command += ["--checkpoint", str(self.folder / f"{place.group}.pt")]
        command += training.options
        own = {
            "TORCHLOOM_JOIN": str(self.state_dir / "join.json"),
            "TORCHLOOM_GROUP": place.group,
            "TORCHLOOM_RANK": "0",
            "TORCHLOOM_NODE": place.node,
            "TORCHLOOM_RACK": place.rack,
            "TORCHLOOM_ROLE": "standby" if place.standby else "",
            "TORCHLOOM_HEARTBEAT_S": str(training.heartbeat_s),
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": "error",
        }
        own |= {**self._network.environment(at), **environment}
        self.trainers[place.group] = self.spawn(
            place.group, self._network.trainer(at, command), own
        )

    def command(self, *words: str) -> list[str]:
        """Return the command line of a ``torchloom`` command."""
        return [sys.executable, "-m", "torchloom_core.cli", *words]

    def spawn(
        self,
        name: str,
        command: list[str],
        environment: Mapping[str, str],
        *,
        orphaned: signal.Signals = signal.SIGKILL,
    ) -> subprocess.Popen[bytes]:
        """Start a process with its output in ``<name>.err``.

        ``orphaned`` is the signal that it gets when this process is killed, on Linux.
        """
        with (self.folder / f"{name}.err").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**os.environ, VARIABLE: own_mark(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_signal_with_parent(orphaned),
            )

    @asynccontextmanager
    async def weaver(
        self, *options: str, acting: bool, changed: Callable[[str], str] = str
    ) -> AsyncIterator[None]:
        """Run the Weaver: if ``acting`` with the training's lighthouse, else as a dry run.

        ``changed`` edits the text of the configuration. At the end the trainers are killed first.
        """
        text = self._training.config_text()
        text = re.sub(r"(?m)^(\[weaver\])$", f'\\1\nstate_dir = "{self.state_dir}"', text)
        text = re.sub(r"(?m)^(\[arbiter\])$", f"\\1\ndry_run = {str(not acting).lower()}", text)
        if acting and self._training.has_lighthouse:
            text += _OUR_LIGHTHOUSE.format(host=self._network.host, port=self.port)
            text += f'\n[broker]\nhost = "{self._network.host}"\n'
        self.config.write_text(changed(text), encoding="utf-8")
        command = self._network.hub(self.command("weaver", "--config", str(self.config), *options))
        process = self.spawn("weaver", command, {}, orphaned=signal.SIGTERM)
        try:
            ready = self.state_dir / "join.json"
            await self.wait_for(ready.exists, process, "weaver")
            yield
        finally:
            for trainer in self.trainers.values():
                kill_tree(trainer)
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(process.wait, 20)
            except subprocess.TimeoutExpired:
                kill_tree(process)

    async def wait_for(
        self, condition: Callable[[], bool], process: subprocess.Popen[bytes], name: str
    ) -> None:
        """Wait until a process is ready; StateError if it ends first, or takes too long."""
        deadline = time.monotonic() + START_S
        while not condition():
            if process.poll() is not None or time.monotonic() > deadline:
                raise StateError(f"the {name} did not start; see {self.folder / f'{name}.err'}")
            await asyncio.sleep(0.05)

    def check(self, group: str) -> None:
        """Raise StateError if a group's trainer has ended with an error."""
        code = self.trainers[group].poll()
        if code not in (None, 0):
            raise StateError(
                f"trainer {group} ended with status {code}; see {self.folder / f'{group}.err'}"
            )

    async def end_of(self, group: str) -> None:
        """Wait until a group's trainer has ended, at most 15 s."""
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.trainers[group].wait, _LEAVE_S)


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children with SIGKILL, as if its node failed."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    process.wait()


def _signal_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that makes a child get a signal when this process ends."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def request_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)

    return request_signal


def listens(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
