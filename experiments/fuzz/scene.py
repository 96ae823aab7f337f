"""A server, a leading Weaver, a standby, two trainers and a receiver of messages, in a folder."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import psutil
from found import Found
from templates import RUN

from torchloom_core.config.services import Broker
from torchloom_core.live.transport.broker import OwnServer
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire.access import PersonRole
from torchloom_core.wire.messages import JoinFile

HERE = Path(__file__).parent
GROUPS = ("g0", "g1")
PATIENCE_S = 60.0
_READY_S = 60.0
_SERVER = """
host: 127.0.0.1
port: {port}
jetstream {{ store_dir: "{folder}/js" }}
include accounts.conf
"""
_CONFIG = f"""
[run]
name = "{RUN}"
[broker]
url = "{{url}}"
accounts = "{{accounts}}"
[join]
cut_after_s = 0
[weaver]
tick_s = 0.2
state_dir = "{{state}}"
[arbiter]
cooldown_s = 0.0
[policies.silence]
[policies.straggler]
[policies.lemon_nodes]
[predictors.fault_history]
[standby]
lease_s = 20
[metrics]
address = "127.0.0.1:{{metrics}}"
series = "worker"
[notify.people]
kind = "webhook"
url = "http://127.0.0.1:{{people}}/"
group_s = 0.5
repeat_s = 1
per_hour = 100000
"""


class Receiver:
    """Takes the messages to people, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                receiver.count += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()


class Process:
    """A Weaver with a config of its own."""

    def __init__(self, folder: Path, name: str, config: str, *options: str) -> None:
        path = folder / f"{name}.toml"
        path.write_text(config)
        self.name = name
        self.log, self._out = path.with_suffix(".log"), path.with_suffix(".out")
        command = [sys.executable, "-m", "torchloom_core.cli", "weaver", *options]
        with self._out.open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--config", path], cwd=folder, stdout=out, stderr=log
            )

    async def ready(self, text: str) -> None:
        """Wait until it has printed or logged a text."""
        deadline = time.monotonic() + _READY_S
        while text not in self._out.read_text() + self.log.read_text(errors="replace"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text())
            await asyncio.sleep(0.05)

    async def end(self, found: Found) -> None:
        """Stop it; one that does not end on SIGTERM counts as a hang."""
        self.process.terminate()
        try:
            status = await asyncio.to_thread(self.process.wait, PATIENCE_S)
            if status != 0:
                found.death(f"the {self.name} ended with status {status}")
        except subprocess.TimeoutExpired:
            found.hang(f"the {self.name} did not end on SIGTERM")
            self.kill()
        found.look_for_tracebacks(self.log.read_text(errors="replace"))

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()


class Scene:
    """All processes; the server trusts the run's keys, as an embedded one does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.receiver = Receiver()
        self.metrics_port, port = lasting_port("127.0.0.1"), lasting_port("127.0.0.1")
        accounts = folder / "accounts.conf"
        given = {
            "url": f"nats://127.0.0.1:{port}",
            "accounts": accounts,
            "people": self.receiver.port,
        }
        settings = Broker(url=given["url"], accounts=str(accounts))
        self.credentials = OwnServer(folder / "state", RUN, settings).credentials
        (folder / "nats.conf").write_text(_SERVER.format(port=port, folder=folder))
        self._server = subprocess.Popen(
            [find_server(), "-c", folder / "nats.conf", "-l", folder / "nats.log"]
        )
        keys = Path("broker") / "keys"
        shutil.copytree(folder / "state" / keys, folder / "other" / keys)
        self.trainer_log = folder / "trainers.log"
        self._trainers: list[subprocess.Popen[bytes]] = []
        own = _CONFIG.format(state="state", metrics=self.metrics_port, **given)
        other = _CONFIG.format(state="other", metrics=lasting_port("127.0.0.1"), **given)
        self.leader = Process(folder, "leader", own)
        self._other_config = other
        self.standby: Process | None = None

    async def ready(self) -> None:
        """Wait for the leader, start the standby and the trainers."""
        await self.leader.ready("is ready")
        self.standby = Process(self.folder, "standby", self._other_config, "--standby")
        await self.standby.ready("standing by")
        self._start_trainers()

    def _start_trainers(self) -> None:
        environment = {"TORCHLOOM_JOIN": str(self.folder / "state" / "join.json")}
        with self.trainer_log.open("w") as log:
            for group in GROUPS:
                self._trainers.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / "trainer.py"), group],
                        env=os.environ | environment,
                        stderr=log,
                    )
                )

    @property
    def join(self) -> JoinFile:
        """The file by which trainers find the Weaver."""
        data = (self.folder / "state" / "join.json").read_bytes()
        return msgspec.json.decode(data, type=JoinFile)

    def person_creds(self, name: str, role: PersonRole) -> str:
        """Return the credentials of a person."""
        credentials = Credentials.find(self.folder / "state", RUN)
        return credentials.person_creds_text(name, nats_jwt.new_seed("user"), role)

    async def end(self, found: Found) -> None:
        """Stop all that still runs."""
        for weaver in (self.leader, self.standby):
            if weaver is not None and weaver.process.poll() is None:
                await weaver.end(found)
        for trainer in self._trainers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(trainer.pid).children(recursive=True):
                    child.kill()
            trainer.kill()
            trainer.wait()
        self._server.kill()
        self._server.wait()
        self.receiver.close()
        found.look_for_tracebacks(self.trainer_log.read_text(errors="replace"))
