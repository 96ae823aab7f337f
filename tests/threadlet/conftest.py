import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import nats
import psutil
import pytest
from nats.js.api import StreamConfig

from tests.deadlines import DEADLINE_S
from tests.settled import settle
from tests.waiting import eventually
from torchloom_core.floor.clock import SystemClock
from torchloom_core.floor.errors import BrokerError
from torchloom_core.live.transport.security.enrolment import Enrolment
from torchloom_core.live.transport.security.grants import Grants
from torchloom_core.live.weaver.courier import Courier
from torchloom_core.wire import subjects
from torchloom_core.wire.codec import (
    decode_ack,
    decode_event,
    decode_json,
    decode_telemetry,
    encode,
)
from torchloom_core.wire.commands import FINAL_STATUSES, Ack, Command
from torchloom_core.wire.messages import (
    Hello,
    JoinFile,
    JoinReply,
    JoinRequest,
    PauseState,
    RollCall,
)
from torchloom_threadlet import attach, identity

RUN = "run"
HERE = Path(__file__).parent


class Wire:
    """Sends the courier's commands over a plain connection."""

    def __init__(self, client):
        self._client = client

    async def connected(self):
        await eventually(lambda: self._client.is_connected)

    async def send(self, commands):
        try:
            for one in commands:
                subject = subjects.command(RUN, one.worker, one.incarnation)
                await self._client.publish(subject, encode(one))
        except nats.errors.Error as error:
            raise BrokerError(str(error)) from None


class WeaversPart:
    """Does a Weaver's part for a Threadlet on a plain connection, and stores the messages."""

    def __init__(self, broker):
        self._broker = broker
        self.acks = []
        self.events = []
        self.telemetry = []
        self.unwanted = ""
        self.waits_s = []
        self.joined_on = []
        self._news = asyncio.Event()
        self._catching_up = None

    async def start(self):
        self.client = await nats.connect(
            self._broker.url,
            user_credentials=str(self._broker.credentials.weaver_creds),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=self._ignore,
            reconnected_cb=self._reconnected,
        )
        self.js = self.client.jetstream()
        await self.js.add_stream(
            StreamConfig(name=subjects.report_stream(RUN), subjects=[subjects.ack(RUN)])
        )
        self.courier = Courier(Wire(self.client), SystemClock())
        self._sending = asyncio.create_task(self.courier.run())
        self.enrolment = enrolment = Enrolment(RUN, self._broker.credentials.worker_jwt, Grants())

        async def join(message):
            self.joined_on.append(message.reply.rpartition(".")[0])  # the client's own inbox
            if self.waits_s:
                return await message.respond(encode(JoinReply(wait_s=self.waits_s.pop())))
            request = decode_json(JoinRequest, message.data, "join request")
            reply = JoinReply(error=self.unwanted, unwanted=True)
            reply = reply if self.unwanted else enrolment.grant(request)
            await message.respond(encode(reply))

        await self.client.subscribe(subjects.join(RUN), cb=join)
        await self._subscribe(subjects.ack(RUN), decode_ack, self.acks)
        await self._subscribe(subjects.event(RUN), decode_event, self.events)
        await self._subscribe(subjects.bulk(RUN), decode_event, self.events)
        await self._subscribe(subjects.telemetry(RUN), decode_telemetry, self.telemetry)
        await settle(self.client)

    async def close(self):
        if self._catching_up is not None:
            self._catching_up.cancel()
        self._sending.cancel()
        await self.client.close()

    async def _ignore(self, error):
        pass

    async def _subscribe(self, subject, decode, into):
        async def take(message):
            self._take(decode(message.data), into)

        await self.client.subscribe(subject, cb=take)

    def _take(self, message, into):
        into.append(message)
        if isinstance(message, Hello):
            self.courier.reached(message.worker, message.incarnation)
        elif isinstance(message, Ack):
            self.courier.note(message.command, message.status)
        self._news.set()

    async def _reconnected(self):
        self._catching_up = asyncio.create_task(eventually(self._is_caught_up))

    async def _is_caught_up(self):
        """Read from the stream the acks that this connection missed."""
        stream = subjects.report_stream(RUN)
        try:
            state = (await self.js.stream_info(stream)).state
            for place in range(state.first_seq, state.last_seq + 1) if state.messages else ():
                ack = decode_ack((await self.js.get_msg(stream, place)).data)
                if ack not in self.acks:
                    self._take(ack, self.acks)
        except nats.errors.Error:
            return False
        return True

    async def until(self, what):
        """Return ``what()`` once it is true; evaluated again at every message."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := what()):
                self._news.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), 0.1)
        return found

    async def event(self, cls, /, worker="g0-0", **fields):
        """Wait for the first event of this class with the given fields."""
        return await self.until(
            lambda: next(
                (
                    event
                    for event in list(self.events)
                    if isinstance(event, cls)
                    and event.worker == worker
                    and all(getattr(event, name) == value for name, value in fields.items())
                ),
                None,
            )
        )

    async def beat(self, check, worker="g0-0"):
        """Wait for telemetry of ``worker`` for which ``check`` is true."""
        return await self.until(
            lambda: next(
                (batch for batch in self.telemetry if batch.worker == worker and check(batch)), None
            )
        )

    async def heartbeats(self, count):
        """Wait for so many more batches of telemetry."""
        before = len(self.telemetry)
        await self.until(lambda: len(self.telemetry) >= before + count)

    async def admit(self, worker="g0-0", **fields):
        """Wait for the worker's hello."""
        return await self.event(Hello, worker, **fields)

    def command(self, hello, operation, command_id="c1", *, epoch=1, ttl_s=DEADLINE_S, cause=""):
        """Return a command to the process of this hello."""
        return Command(
            id=command_id,
            run=RUN,
            worker=hello.worker,
            incarnation=hello.incarnation,
            epoch=epoch,
            issued_ns=time.time_ns(),
            deadline_ns=time.time_ns() + round(ttl_s * 1e9),
            do=operation,
            cause=cause,
        )

    async def send(self, hello, operation, command_id="c1", **fields):
        """Send a command, and again until its final ack."""
        self.courier.hold(self.command(hello, operation, command_id, **fields))
        self.courier.send([command_id])

    async def send_once(self, hello, command):
        """Send a command once, to the process of this hello."""
        subject = subjects.command(RUN, hello.worker, hello.incarnation)
        await self.client.publish(subject, encode(command))

    async def final(self, command_id="c1", epoch=1):
        """Wait for a command's final ack."""
        return await self.until(
            lambda: next(
                (
                    ack
                    for ack in self.acks
                    if (ack.command, ack.epoch) == (command_id, epoch)
                    and ack.status in FINAL_STATUSES
                ),
                None,
            )
        )

    async def ask(self, hello, operation, command_id="c1", **fields):
        """Send a command and wait for its final ack."""
        await self.send(hello, operation, command_id, **fields)
        return await self.final(command_id, fields.get("epoch", 1))

    async def publish_pause(self, verdict, over="", epoch=1, run=RUN, role=""):
        """Publish the pause in force once."""
        message = PauseState(run=run, epoch=epoch, verdict=verdict, over=over, role=role)
        await self.client.publish(subjects.pause_state(RUN), encode(message))

    @contextlib.asynccontextmanager
    async def confirming_pause(self, verdict):
        """Publish repeatedly that this pause is in force."""

        async def publish():
            while True:
                await self.publish_pause(verdict)
                await asyncio.sleep(0.2)

        publishing = asyncio.create_task(publish())
        yield
        publishing.cancel()

    async def send_roll_call(self):
        await self.client.publish(subjects.roll_call(RUN), encode(RollCall(run=RUN, epoch=1)))


def is_sidecar(process):
    try:
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return is_alive and "torchloom_threadlet.sidecar" in process.cmdline()
    except psutil.NoSuchProcess:
        return False  # it has ended meanwhile


class Trainer:
    """A trainer in a process of its own."""

    def __init__(self, folder, name, arguments, environment):
        self.journal_path = folder / f"{name}.jsonl"
        self._errors_path = folder / f"{name}.err"
        with self._errors_path.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, HERE / "trainer.py", "--journal", self.journal_path, *arguments],
                env=os.environ | environment,
                cwd=folder,
                stderr=errors,
            )

    @property
    def errors(self):
        """The output of trainer and sidecar so far."""
        return self._errors_path.read_text()

    def journal(self, event=None):
        """Return the lines that the trainer has written so far."""
        if not self.journal_path.exists():
            return []
        text = self.journal_path.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def sidecars(self):
        """Return the sidecar processes of this trainer."""
        return [child for child in psutil.Process(self.process.pid).children() if is_sidecar(child)]

    async def until(self, what):
        """Return ``what()`` once it is true."""

        def found():
            result = what()
            assert result or self.process.poll() is None, "the trainer has ended"
            return result

        return await eventually(found)

    async def goes_on(self):
        """Wait for three more steps."""
        done = len(self.journal("step"))
        await self.until(lambda: len(self.journal("step")) >= done + 3)

    async def ended(self):
        """Wait for the process to end and return its exit status."""
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)


@pytest.fixture(autouse=True)
def no_weaver_by_chance(tmp_path, monkeypatch):
    """Make a loom of this process inert, wherever the tests are run."""
    monkeypatch.delenv("TORCHLOOM_JOIN", raising=False)
    monkeypatch.setattr(identity, "DEFAULT_JOIN_PATH", tmp_path / ".torchloom" / "join.json")


@pytest.fixture(autouse=True)
def no_ears_left_behind():
    """Remove the filters of a loom of this process from torchft's loggers."""
    loggers = [logging.getLogger(f"torchft_{kind}") for kind in ("quorums", "commits", "errors")]
    before = [(list(logger.filters), logger.level) for logger in loggers]
    yield
    for logger, (filters, level) in zip(loggers, before, strict=True):
        logger.filters[:] = filters
        logger.setLevel(level)


@pytest.fixture
def end_with_sidecars():
    """Return a function that kills a trainer, then its sidecars.

    In the other order the trainer would start another sidecar.
    """

    def end(process):
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    return end


@pytest.fixture
async def weaver(broker):
    part = WeaversPart(broker)
    await part.start()
    yield part
    await part.close()


@pytest.fixture
def join_file(broker, tmp_path):
    path = tmp_path / "join.json"
    join = JoinFile(url=broker.url, run=RUN, creds=broker.credentials.join_creds_text())
    path.write_bytes(msgspec.json.encode(join))
    return path


@pytest.fixture
def start_trainer(join_file, tmp_path, end_with_sidecars):
    """Return a function that starts a trainer, which does not outlive the test."""
    trainers = []

    def start(*arguments, name="trainer", **environment):
        defaults = {"TORCHLOOM_JOIN": str(join_file), "TORCHLOOM_HEARTBEAT_S": "0.1"}
        trainer = Trainer(tmp_path, name, arguments, defaults | environment)
        trainers.append(trainer)
        return trainer

    yield start
    for trainer in trainers:
        end_with_sidecars(trainer.process)


@pytest.fixture
def awaiting_loom(tmp_path, monkeypatch):
    """A loom that awaits a Weaver; the test takes its rows."""
    monkeypatch.setenv("TORCHLOOM_JOIN", str(tmp_path / "join.json"))
    loom = attach(group="g0", rank=0)
    loom._worker._link.stop()
    yield loom
    loom.close()
