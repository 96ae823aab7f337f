"""Mutated messages to a real Weaver through each party's own credentials."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import psutil
from found import Found, Show
from mutation import Mutator, as_json, as_msgpack
from nats.aio.client import RawCredentials
from templates import RUN, ack, bodies, events, join_request, telemetry

from torchloom_core.floor.nats_client import NatsClient
from torchloom_core.live.transport.security import nats_jwt
from torchloom_core.live.transport.security.credentials import Credentials
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import MAX_MESSAGE_BYTES, decode_json
from torchloom_core.wire.messages import JoinFile, JoinReply
from torchloom_core.wire.status import Status

HERE = Path(__file__).parent
CONFIG = f"""
[run]
name = "{RUN}"
[weaver]
tick_s = 0.2
state_dir = "state"
[arbiter]
cooldown_s = 0.0
[policies.silence]
[policies.straggler]
[policies.lemon_nodes]
[predictors.fault_history]
"""
WORKER = "w-0"
INCARNATIONS = (1, 2, 3)
PEOPLE = tuple(f"person{number}" for number in range(16))
"""Number of people, because the Weaver drops messages beyond a sender's quota."""
GROUPS = ("g0", "g1")
_OBSERVER = "observer"
_FLUSH_EVERY = 50
_ASK_EVERY = 500
_PATIENCE_S = 60.0
_READY_S = 60.0
_FRESH_S = 10.0


class Scene:
    """A Weaver, its broker and two trainers with sidecars, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "torchloom.toml").write_text(CONFIG)
        self.log = folder / "weaver.log"
        self.trainer_log = folder / "trainers.log"
        self._trainers: list[subprocess.Popen[bytes]] = []
        self._out = folder / "weaver.out"
        with self._out.open("w") as out, self.log.open("w") as log:
            command = [sys.executable, "-m", "torchloom_core.cli", "weaver"]
            self.weaver = subprocess.Popen(command, cwd=folder, stdout=out, stderr=log)

    async def ready(self) -> None:
        """Wait for the Weaver."""
        deadline = time.monotonic() + _READY_S
        while "is ready" not in self._out.read_text():
            if self.weaver.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(self.log.read_text())
            await asyncio.sleep(0.05)

    def start_trainers(self) -> None:
        """Start two, each with its sidecar."""
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

    def person_creds(self, name: str) -> str:
        """Return the credentials of a person."""
        credentials = Credentials.find(self.folder / "state", RUN)
        return credentials.person_creds_text(name, nats_jwt.new_seed("user"))

    async def end(self, found: Found) -> None:
        """Stop all; a Weaver that does not end on SIGTERM counts as a hang."""
        self.weaver.terminate()
        try:
            status = await asyncio.to_thread(self.weaver.wait, _PATIENCE_S)
            if status != 0:
                found.death(f"the Weaver ended with status {status}")
        except subprocess.TimeoutExpired:
            found.hang("the Weaver did not end on SIGTERM")
            self.weaver.kill()
            self.weaver.wait()
        for trainer in self._trainers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(trainer.pid).children(recursive=True):
                    child.kill()
            trainer.kill()
            trainer.wait()
        with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
            record = msgspec.json.decode((self.folder / "state/broker/broker.json").read_bytes())
            broker = psutil.Process(record["pid"])
            if str(self.folder) in " ".join(broker.cmdline()):
                broker.kill()


class Parties:
    """Each incarnation of a worker, a joiner and people, each on a connection of its own.

    One more client requests the status and sends nothing else.
    """

    incarnations: dict[int, NatsClient]
    joiner: NatsClient
    people: dict[str, NatsClient]
    observer: NatsClient

    async def connect(self, scene: Scene) -> None:
        """Connect all; the worker enrols as any other does, for each incarnation."""
        join = scene.join
        inbox = f"_INBOX_JOIN_{RUN}"
        self.joiner = await _connect(join.url, join.creds, inbox)
        self.people = {
            name: await _connect(join.url, scene.person_creds(name), "_INBOX") for name in PEOPLE
        }
        self.observer = await _connect(join.url, scene.person_creds(_OBSERVER), "_INBOX")
        seed = nats_jwt.new_seed("user")
        self._key = nats_jwt.public_key(seed)
        self.incarnations = {}
        for incarnation in INCARNATIONS:
            request = as_json(join_request(WORKER, self._key, incarnation))
            answer = await self.joiner.request(subjects.join(RUN), request, timeout=_PATIENCE_S)
            creds = nats_jwt.creds_text(decode_json(JoinReply, answer.data, "join reply").jwt, seed)
            prefix = subjects.inbox_prefix(RUN, WORKER, incarnation)
            self.incarnations[incarnation] = await _connect(join.url, creds, prefix)

    async def send(self, mutator: Mutator, number: int) -> None:
        """Send one mutated message of one party, in turns."""
        choose = mutator.random.choice
        incarnation = choose(INCARNATIONS)
        match number % 3:
            case 0:
                subject, template, encode = choose(self._of_worker(incarnation))
                await _publish(
                    self.incarnations[incarnation], subject, mutator.message(template, encode)
                )
            case 1:
                template = join_request(choose((WORKER, "w-1", "g0-0")), self._key)
                data = mutator.message(template, as_json)
                await _publish(self.joiner, subjects.join(RUN), data)
            case _:
                verb, body = choose(bodies())
                data = mutator.message(body, as_json)
                name = choose(PEOPLE)
                await _publish(self.people[name], subjects.control(RUN, name, verb), data)

    def _of_worker(self, incarnation: int) -> list[tuple[str, Any, Any]]:
        own = RUN, WORKER, incarnation
        batch = telemetry(WORKER, incarnation)
        return [
            *((subjects.telemetry(*own), batch, as_msgpack) for _ in range(4)),
            *((subjects.event(*own), e, as_json) for e in events(WORKER, incarnation)),
            *((subjects.ack(*own), ack(WORKER, incarnation), as_json) for _ in range(2)),
        ]

    async def flush(self) -> None:
        """Wait until the broker has received all messages."""
        for client in self._clients():
            await client.flush(timeout=_PATIENCE_S)

    async def status(self) -> Status:
        """Request the Weaver's status."""
        subject = subjects.control(RUN, _OBSERVER, "status")
        answer = await self.observer.request(subject, b"", timeout=_PATIENCE_S)
        return msgspec.json.decode(answer.data, type=Status)

    async def close(self) -> None:
        """Disconnect all."""
        for client in self._clients():
            await client.close()

    def _clients(self) -> list[NatsClient]:
        return [*self.incarnations.values(), self.joiner, *self.people.values(), self.observer]


async def fuzz_weaver(folder: Path, count: int, seed: int, show: Show) -> Found:
    """Send ``count`` mutated messages, a third by each party, and check what has survived."""
    found = Found("weaver")
    mutator = Mutator(seed)
    scene = Scene(folder)
    try:
        await scene.ready()
        scene.start_trainers()
        parties = Parties()
        await parties.connect(scene)
        await _trains(parties, found)
        slowest_s = 0.0
        for number in range(count):
            await parties.send(mutator, number)
            found.sent += 1
            if number % _FLUSH_EVERY == 0:
                await parties.flush()
                show(found.sent)
            if number % _ASK_EVERY == 0 or number == count - 1:
                if scene.weaver.poll() is not None:
                    found.death(f"the Weaver, after {number} messages")
                    break
                slowest_s = max(slowest_s, await _asked(parties, found, number))
        found.numbers["slowest_status_s"] = round(slowest_s, 3)
        await _trains(parties, found)
        status = await parties.status()
        found.numbers |= {"malformed": status.malformed, "ticks": status.ticks}
        await parties.close()
    except (TimeoutError, nats.errors.Error) as error:
        found.hang(f"{type(error).__name__}: {error}")
    finally:
        await scene.end(found)
    for log in (scene.log, scene.trainer_log):
        found.look_for_tracebacks(log.read_text(errors="replace"))
    found.numbers["log_kB"] = round(scene.log.stat().st_size / 1e3)
    return found


async def _asked(parties: Parties, found: Found, number: int) -> float:
    began = time.monotonic()
    try:
        await parties.status()
    except (TimeoutError, nats.errors.Error) as error:
        found.hang(f"no status after {number} messages: {type(error).__name__} {error}")
    except msgspec.DecodeError as error:
        found.traceback(f"a status that is none after {number} messages: {error}")
    return time.monotonic() - began


async def _trains(parties: Parties, found: Found) -> None:
    """Wait for recent heartbeats of both sidecars."""
    deadline = time.monotonic() + _READY_S
    wanted = {f"{group}-0" for group in GROUPS}
    while time.monotonic() < deadline:
        status = await parties.status()
        alive = {
            row.worker
            for row in status.workers
            if row.heartbeat_age_s is not None and row.heartbeat_age_s < _FRESH_S
        }
        if wanted <= alive:
            return
        await asyncio.sleep(0.2)
    found.hang(f"need heartbeats of {sorted(wanted)}, were of {sorted(alive)}")


async def _publish(client: NatsClient, subject: str, data: bytes) -> None:
    # The server closes the connection of a longer message.
    await client.publish(subject, data[:MAX_MESSAGE_BYTES])


async def _connect(url: str, creds: str, inbox: str) -> NatsClient:
    client = NatsClient()
    await client.connect(
        url, user_credentials=RawCredentials(creds), inbox_prefix=inbox, error_cb=_ignore
    )
    return client


async def _ignore(error: Exception) -> None:
    pass
