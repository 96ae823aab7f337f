"""The hosts that may lead a run: each has a Weaver, its nats-server and its lighthouse.

A Weaver that ends is restarted as systemd would.
"""

import asyncio
import contextlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from experiments.chaos import record
from experiments.chaos.processes import DEADLINE_S, POLL_S, Place, last_line
from torchloom_core.config.services import ROUTE_STEP
from torchloom_core.live.transport.ports import is_free, lasting_port

GREETING = b"INFO "
LOOPBACK = "127.0.0.1"
COUNT = 3
TORCHLOOM = (sys.executable, "-m", "torchloom_core.cli")

CLUSTER = """
[broker]
port = {port}
peers = {peers}
{tls}
[lighthouse]
port = {lighthouse}
status_port = 0
heartbeat_timeout_s = 1.0
join_timeout_s = 10.0
{tls}"""


class Host:
    """A Weaver with its servers; alone, or one of a cluster's."""

    def __init__(
        self,
        place: Place,
        rng: random.Random,
        number: int = 0,
        config: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._place = place
        self._rng = rng
        self._starts = 0
        self._up = 0
        self._options = options
        self.number = number
        self.config = config or place.config
        self.state = self.config.parent / "state"
        self.process: subprocess.Popen[bytes] | None = None
        self.struck = False
        self.ready = False

    @property
    def weaver(self) -> int:
        """The Weaver's process id, 0 if it does not run."""
        return self.process.pid if self.process and self.process.poll() is None else 0

    @property
    def broker(self) -> int:
        """The nats-server's process id, 0 if there is none at this moment."""
        return self._pid_in("broker")

    @property
    def lighthouse(self) -> int:
        """The lighthouse's process id, 0 if there is none on this host."""
        return self._pid_in("lighthouse")

    async def keep_up(self) -> None:
        """Start the Weaver, and again after a moment, until the run is over."""
        while not self._place.is_over:
            self._starts += 1
            name = f"weaver-{f'{self.number}-' if self._options else ''}{self._starts}"
            self.struck = self.ready = False
            command = [*TORCHLOOM, "weaver", *self._options, "--config", str(self.config)]
            self.process = self._place.spawn(name, command, {})
            own = {"what": "weaver", "name": name, "host": self.number}
            self._place.timeline.add("start", pid=self.process.pid, **own)
            out, log = (self._place.folder / f"{name}.{kind}" for kind in ("out", "err"))
            while self.process.poll() is None:
                news = not self.ready and (
                    "is ready" in out.read_text() or "standing by" in log.read_text()
                )
                if news:
                    self.ready = True
                    self._place.timeline.add("ready", **own)
                await asyncio.sleep(POLL_S)
            status = self.process.returncode
            ended = {"status": status, "struck": self.struck, "last": last_line(log)}
            self._place.timeline.add("end", **own, **ended)
            self.ready = False
            await asyncio.sleep(self._rng.uniform(0.1, 1.5))

    async def watch_broker(self) -> None:
        """Write down whenever a new nats-server greets its clients."""
        while True:
            pid = self.broker
            if pid not in (0, self._up) and await self._greets():
                self._up = pid
                self._place.timeline.add("ready", what="broker", pid=pid, host=self.number)
            await asyncio.sleep(POLL_S)

    async def _greets(self) -> bool:
        with contextlib.suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(1):
                port = self._row("broker")["port"]
                reader, writer = await asyncio.open_connection(LOOPBACK, port)
                greeting = await reader.read(len(GREETING))
                writer.close()
                return greeting == GREETING
        return False

    def _pid_in(self, name: str) -> int:
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            pid = int(self._row(name)["pid"])
            process = psutil.Process(pid)
            ours = str(self.state) in " ".join(process.cmdline())
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                return pid
        return 0

    def _row(self, name: str) -> record.Row:
        row: record.Row = json.loads((self.state / name / f"{name}.json").read_text())
        return row


def alone(place: Place, seed: int) -> list[Host]:
    """Return the one host of a run without standbys."""
    return [Host(place, random.Random(f"{seed} weaver"))]


def cluster(place: Place, seed: int) -> tuple[list[Host], str]:
    """Return three hosts with standby Weavers, servers in a cluster and TLS; and their relay.

    The relay is the URL at which Managers find the lighthouse that serves.
    """
    folder = place.folder
    _torchloom(folder, "tls", "init", LOOPBACK)
    files = {name: folder / "tls" / LOOPBACK / f"{name}.pem" for name in TLS}
    tls = "".join(f'{name} = "{path}"\n' for name, path in files.items())
    ports = [_port_of_server() for _ in range(COUNT)]
    lighthouses = [lasting_port(LOOPBACK) for _ in range(COUNT)]
    peers = [f"{LOOPBACK}:{port}" for port in ports]
    hosts: list[Host] = []
    for number in range(COUNT):
        own = folder / f"host-{number}"
        own.mkdir()
        config = own / "torchloom.toml"
        values = {"port": ports[number], "lighthouse": lighthouses[number]}
        text = place.text.format(state=own / "state", deadline_s=DEADLINE_S)
        config.write_text(text + CLUSTER.format(peers=peers, tls=tls, **values))
        rng = random.Random(f"{seed} weaver {number}")
        hosts.append(Host(place, rng, number, config, ("--standby",)))
    first, *others = hosts
    _torchloom(folder, "broker", "keys", "--config", str(first.config))
    for other in others:
        shutil.copytree(first.state / "broker" / "keys", other.state / "broker" / "keys")
    place.config = first.config
    bind = f"{LOOPBACK}:{lasting_port(LOOPBACK)}"
    command = [*TORCHLOOM, "lighthouse-relay", "--bind", bind]
    command += [f"{LOOPBACK}:{port}" for port in lighthouses]
    place.spawn("relay", command + [f"--{name}={path}" for name, path in files.items()], {})
    return hosts, f"http://{bind}"


TLS = ("certificate", "key", "ca")


def _torchloom(folder: Path, *words: str) -> None:
    subprocess.run([*TORCHLOOM, *words], cwd=folder, check=True, capture_output=True)


def _port_of_server() -> int:
    """Return a port that is free together with that for the other servers of the cluster."""
    while True:
        port = lasting_port(LOOPBACK)
        if port + ROUTE_STEP < 1 << 16 and is_free(LOOPBACK, port + ROUTE_STEP):
            return port


def give_join_file(place: Place, hosts: Sequence[Host]) -> bool:
    """Copy the file by which trainers find the run to their place; return whether it is there."""
    theirs = place.state / "join.json"
    for host in hosts:
        own = host.state / "join.json"
        if own != theirs and own.exists():
            place.state.mkdir(exist_ok=True)
            shutil.copy(own, theirs)
    return theirs.exists()


def leads(hosts: Sequence[Host], status: dict[str, Any] | None) -> Host | None:
    """Return the host that an answer to ``status`` names as the leader's, if it still runs."""
    words = str((status or {}).get("leader") or "").split()
    pid = int(words[1]) if len(words) > 1 else -1
    return next((host for host in hosts if host.weaver == pid), None)
