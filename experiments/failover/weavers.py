"""Weavers with folders of their own, which stand by for one run and are started again."""

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import time

from experiments.chaos.processes import POLL_S, Place, last_line, strike
from experiments.failover.link import Link
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.ports import lasting_port

COUNT = 4
"""By default, so that at least two stand by at each strike, while one is started again."""
CONFIG = """
[run]
name = "chaos"

[weaver]
state_dir = "state"
tick_s = 0.25
command_deadline_s = 20.0

[broker]
url = "{url}"

[arbiter]
cooldown_s = 0

[policies.silence]
"""
LIGHTHOUSE = """
[lighthouse]
port = {port}
status_port = 0
join_timeout_s = 10.0
"""


def start_server(place: Place) -> tuple[subprocess.Popen[bytes], int]:
    """Start the nats-server that all use; return it and its port."""
    port = lasting_port("127.0.0.1")
    config = place.folder / "nats.conf"
    store = place.folder / "jetstream"
    config.write_text(f'host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: "{store}" }}\n')
    process = place.spawn("nats", [str(find_server()), "-c", str(config)], {})
    return process, port


def start_relay(place: Place, ports: list[int]) -> tuple[subprocess.Popen[bytes], str]:
    """Start the relay beside the trainers; return it and its URL."""
    bind = f"127.0.0.1:{lasting_port('127.0.0.1')}"
    command = [sys.executable, "-m", "torchloom_core.cli", "lighthouse-relay", "--bind", bind]
    places = [f"127.0.0.1:{port}" for port in ports]
    return place.spawn("relay", [*command, *places], {}), f"http://{bind}"


def url_of(port: int) -> str:
    """Return the URL of a server on this machine."""
    return f"nats://127.0.0.1:{port}"


class StandbyWeaver:
    """One of the Weavers: it is started again whenever it ends, and may be frozen."""

    def __init__(
        self, place: Place, number: int, link: Link, rng: random.Random, lighthouse_port: int
    ) -> None:
        self._place = place
        self._link = link
        self._rng = rng
        self._starts = 0
        self.number = number
        self.folder = place.folder / f"host-{number}"
        self.folder.mkdir()
        self.config = self.folder / "torchloom.toml"
        light = LIGHTHOUSE.format(port=lighthouse_port) if lighthouse_port else ""
        self.config.write_text(CONFIG.format(url=url_of(link.port)) + light)
        self.process: subprocess.Popen[bytes] | None = None
        self.frozen = self.struck = False

    @property
    def pid(self) -> int:
        """Its process id, 0 if it does not run."""
        return self.process.pid if self.process and self.process.poll() is None else 0

    @property
    def log(self) -> str:
        """What its present process has logged."""
        path = self._place.folder / f"{self._name}.err"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _name(self) -> str:
        return f"weaver-{self.number}-{self._starts}"

    async def keep_up(self) -> None:
        """Start it, and again after a moment as systemd would, until the run is over."""
        while not self._place.is_over:
            self._starts += 1
            self.struck = False
            command = [sys.executable, "-m", "torchloom_core.cli", "weaver", "--standby"]
            own = {"OMP_NUM_THREADS": "1"}
            command += ["--config", str(self.config)]
            self.process = self._spawn(command, own)
            while self.process.poll() is None:  # noqa: ASYNC110 - a process
                await asyncio.sleep(POLL_S)
            if not self.struck and not self._place.is_over:
                last = last_line(self._place.folder / f"{self._name}.err")
                status = self.process.returncode
                self._place.timeline.add("ended", name=self._name, status=status, last=last)
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))

    def kill(self) -> None:
        """Kill it."""
        self.struck = True
        strike(self.pid, signal.SIGKILL)

    def kill_host(self) -> None:
        """Kill it and its lighthouse, as the loss of its host does."""
        path = self.folder / "state" / "lighthouse" / "lighthouse.json"
        if path.exists():
            strike(json.loads(path.read_text())["pid"], signal.SIGKILL)
        self.kill()

    async def cut(self, lasts_s: float) -> None:
        """Cut its connection to the server for a while."""
        self.frozen = True
        await self._link.cut(lasts_s)
        self.frozen = False
        self._place.timeline.add("whole", number=self.number)

    async def freeze(self, lasts_s: float) -> None:
        """Stop it for a while."""
        pid, self.frozen = self.pid, True
        strike(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            strike(pid, signal.SIGCONT)
            self.frozen = False
            self._place.timeline.add("thaw", pid=pid, t_s=time.time())

    def give_join_file(self, server_port: int) -> None:
        """Copy the file by which trainers find the run, once this Weaver has written it.

        They connect to the server itself.
        """
        path = self.folder / "state" / "join.json"
        if path.exists():
            self._place.state.mkdir(exist_ok=True)
            join = json.loads(path.read_text()) | {"url": url_of(server_port)}
            (self._place.state / "join.json").write_text(json.dumps(join))

    def stop(self) -> None:
        """End it, and wait."""
        if self.process is not None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30.0)

    def _spawn(self, command: list[str], own: dict[str, str]) -> subprocess.Popen[bytes]:
        # Its folder is the present one, as its config names the state folder from there.
        script = f'cd "{self.folder}" && exec "$@"'
        return self._place.spawn(self._name, ["/bin/sh", "-c", script, "sh", *command], own)
