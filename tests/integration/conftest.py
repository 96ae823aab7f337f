"""A whole run in real processes: a broker, a Weaver, a lighthouse and trainers."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import nats
import nats.errors
import psutil
import pytest

from tests import waiting
from tests.deadlines import DEADLINE_S
from tests.preloaded import Preloaded
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.transport.ports import lasting_port
from torchloom_core.wire import subjects
from torchloom_core.wire.access import READS

_TRIES = 3
ANSWER_S = DEADLINE_S / 10  # repeated, as a kill may lose the answer
LOG_CHARS = 2000
HERE = Path(__file__).parent
WEAVER = (sys.executable, "-m", "torchloom_core.cli", "weaver")
LIGHT_TRAINER = HERE.parent / "threadlet" / "trainer.py"
TORCHFT_TRAINER = HERE / "trainer.py"
LANDSCAPE_TRAINER = HERE / "landscape_trainer.py"
PREVIEW_TRAINER = HERE / "preview_trainer.py"


def until(what):
    """Return ``what()`` once it is true; an error of the broker counts as false."""

    def found():
        with contextlib.suppress(nats.errors.Error, OSError):
            return what()
        return None

    return waiting.until(found)


class Trainer:
    """One worker in its own process; ``rows`` are its steps, ``journal`` its commands."""

    def __init__(self, folder, group, start, command, environment):
        self.group = group
        self.worker = f"{group}-0"
        self._folder = folder
        self.journal_path = folder / f"{group}.journal"
        self.log_path = folder / f"{group}.jsonl"
        self.hold = folder / f"{group}.hold"
        own = {
            "TORCHLOOM_JOIN": str(folder / "state" / "join.json"),
            "TORCHLOOM_GROUP": group,
            "TORCHLOOM_NODE": f"node-{group}",
            "TORCHLOOM_HEARTBEAT_S": "0.2",
            "TEST_JOURNAL": str(self.journal_path),
            "TEST_HOLD": str(self.hold),
            "OMP_NUM_THREADS": "1",
            "RUST_LOG": "error",
        }
        with (folder / f"{group}.err").open("a") as errors:
            self.process = start(
                command, cwd=folder, env=os.environ | own | environment, stderr=errors
            )

    def journal(self, event=None):
        return [row for row in _rows(self.journal_path) if event in (None, row["event"])]

    @property
    def rows(self):
        return [row for row in _rows(self.log_path) if "committed" in row]

    @property
    def errors(self):
        return (self._folder / f"{self.group}.err").read_text()

    @property
    def sidecar(self):
        """The sidecar that runs at this moment, or None."""
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if "torchloom_threadlet.sidecar" in child.cmdline():
                    return child
        return None

    def goes_on(self, steps=10):
        """Wait for so many more steps."""
        done = len(self.rows)
        until(lambda: len(self.rows) >= done + steps or self.process.poll() is not None)
        assert self.process.poll() is None, self.errors

    def end(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.wait()


class Run:
    """A folder, a config and everything that was started from it."""

    def __init__(self, folder, config, environment=None):
        self.folder = folder
        self.name = "live"
        self.config = folder / "torchloom.toml"
        self.config.write_text(f"[run]\nname = 'live'\n{config}")
        self.state = folder / "state"
        self._environment = os.environ | (environment or {})
        self.weavers = []
        self.trainers = {}

    # --- the Weaver ---

    @property
    def weaver(self):
        return self.weavers[-1]

    def start_standby(self):
        """Start a Weaver with --standby, and wait until it waits or leads."""
        return self.start_weaver("--standby", up="standing by for run")

    def start_weaver(self, *arguments, command=WEAVER, up="is ready"):
        """Start a Weaver and wait until it is ready."""
        number = len(self.weavers) + 1
        out, err = self.folder / f"weaver-{number}.out", self.folder / f"weaver-{number}.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [*command, "--config", self.config, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=stdout,
                stderr=stderr,
            )
        process.errors = err
        self.weavers.append(process)
        logs = out, err
        until(lambda: any(up in log.read_text() for log in logs) or process.poll() is not None)
        assert process.poll() is None, err.read_text()
        return process

    def kill_weaver(self):
        self.weaver.send_signal(signal.SIGKILL)
        self.weaver.wait()

    @property
    def broker(self):
        return json.loads((self.state / "broker" / "broker.json").read_text())

    # --- the trainers ---

    def start_light(self, group, *arguments, **environment):
        """Start a trainer without torch."""
        path = self.folder / f"{group}.journal"
        command = [sys.executable, LIGHT_TRAINER, "--journal", path, *map(str, arguments)]
        return self._start(group, subprocess.Popen, command, environment)

    def start_torchft(self, group, lighthouse, **environment):
        """Start a torchft trainer that runs until it is stopped."""
        command = [TORCHFT_TRAINER, "--lighthouse", lighthouse]
        command += ["--steps", "1000000", "--step-ms", "40", "--log", f"{group}.jsonl"]
        command += ["--result", f"{group}.json", "--checkpoint", f"{group}.pt"]
        return self._start(group, Preloaded, command, environment)

    def start_landscape_trainer(self, group, **environment):
        """Start a standby that offers to look at the loss."""
        return self._start_standby(group, LANDSCAPE_TRAINER, environment)

    def start_preview_trainer(self, group, **environment):
        """Start a standby that offers to try changes out."""
        return self._start_standby(group, PREVIEW_TRAINER, environment)

    def _start_standby(self, group, script, environment):
        own = {"TORCHLOOM_ROLE": "standby", **environment}
        return self._start(group, Preloaded, [script], own)

    def _start(self, group, start, command, environment):
        trainer = Trainer(self.folder, group, start, command, environment)
        self.trainers.setdefault(group, []).append(trainer)
        return trainer

    # --- a person ---

    def ask(self, verb, body=None):
        """Send a plain NATS request with a person's credentials, as ``nats req`` does.

        One that reads or has an id is repeated: a restart of the server may lose the answer.
        """
        data = json.dumps(body).encode() if body is not None else b""
        to = subjects.control(self.name, "operator", verb)
        for _ in range(_TRIES - 1 if verb in READS or "id" in (body or {}) else 0):
            with contextlib.suppress(nats.errors.TimeoutError):
                return json.loads(asyncio.run(self._ask(to, data)))
        return json.loads(asyncio.run(self._ask(to, data)))

    async def _ask(self, subject, data):
        async with self.client() as client:
            return (await client.request(subject, data, timeout=ANSWER_S)).data

    @contextlib.asynccontextmanager
    async def client(self, creds="operator"):
        path = self.state / "broker" / "keys" / f"{creds}.creds"
        client = await nats.connect(
            self.broker["url"],
            user_credentials=str(path),
            allow_reconnect=False,
            connect_timeout=DEADLINE_S,
            error_cb=_ignore,
        )
        try:
            yield client
        finally:
            await client.close()

    def torchloom(self, *arguments):
        return subprocess.run(
            [sys.executable, "-m", "torchloom_core.cli", *map(str, arguments)],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def worker(self, name):
        """Return the worker's row of the live table, or None."""
        rows = {row["worker"]: row for row in self.ask("status")["workers"]}
        return rows.get(name)

    def training(self, *groups):
        """Wait until these groups train."""
        workers = {f"{group}-0" for group in groups}
        until(
            lambda: (
                workers
                <= {w["worker"] for w in self.ask("status")["workers"] if w["state"] == "training"}
            )
        )

    def ticks(self, count):
        """Wait for so many more ticks of the Weaver."""
        now = self.ask("status")["ticks"]
        until(lambda: self.ask("status")["ticks"] >= now + count)

    # --- the record ---

    @property
    def trajectory(self):
        return run_folder(self.state, self.name)

    def records(self, *kinds):
        """Return ``(epoch, body)`` of every record of these kinds, over all epochs."""
        return [
            (record.meta.epoch, msgspec.json.decode(line.body))
            for record in read_epochs(self.trajectory)
            for line in record.lines()
            if line.kind in kinds
        ]

    def logs(self):
        """Return the end of each process's stderr, by the file's name."""
        files = [path for path in sorted(self.folder.glob("*.err")) if path.stat().st_size]
        return [(path.name, path.read_text(errors="replace")[-LOG_CHARS:]) for path in files]

    def close(self):
        for trainers in self.trainers.values():
            for trainer in trainers:
                trainer.end()
        for weaver in self.weavers:
            weaver.kill()
            weaver.wait()
        self.kill_broker()
        self._kill_lighthouse()

    def kill_broker(self):
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            broker = psutil.Process(self.broker["pid"])
            if str(self.state) in " ".join(broker.cmdline()):
                broker.kill()

    def _kill_lighthouse(self):
        """Kill the one that a killed Weaver has left to its successor."""
        for process in psutil.process_iter(["cmdline"]):
            if str(self.state / "lighthouse") in " ".join(process.info["cmdline"] or ()):
                process.kill()


def standing_by(run, standby, worker):
    """Yield a standby once it has reported, and end it."""
    until(lambda: (run.worker(worker) or {}).get("state") == "standby")
    yield standby
    standby.process.kill()  # its sidecar reports it
    standby.process.wait()
    until(lambda: run.worker(worker)["state"] == "gone")


async def _ignore(error):
    pass


def _rows(path):
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Show the stderr of a failed run's processes: the failure may not be repeatable."""
    report = yield
    if report.failed:
        for run in (value for value in item.funcargs.values() if isinstance(value, Run)):
            report.sections += run.logs()
    return report


@pytest.fixture(scope="module")
def start_run(tmp_path_factory):
    """Return a function that makes a run, which does not outlive the module."""
    runs = []

    def start(config, environment=None):
        runs.append(Run(tmp_path_factory.mktemp("run"), config, environment))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


@pytest.fixture(scope="module")
def lighthouse(tmp_path_factory):
    """A lighthouse in a process of its own; returns its URL."""
    port = lasting_port("127.0.0.1")
    command = [Path(sys.executable).with_name("torchft_lighthouse"), "--bind", f"[::]:{port}"]
    command += ["--min_replicas", "1", "--join_timeout_ms", "10000"]
    command += ["--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "100"]
    with (tmp_path_factory.mktemp("lighthouse") / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=os.environ | {"RUST_LOG": "error"}, stdout=log, stderr=log
        )
    until(lambda: process.poll() is not None or _listens(port))
    yield f"http://localhost:{port}"
    process.kill()
    process.wait()


def _listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session", name="until")
def until_fixture():
    return until
