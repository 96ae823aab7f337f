"""A broker that dies or stalls while the Weaver starts is waited for; nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.deadlines import DEADLINE_S
from torchloom_core.config.loading import parse
from torchloom_core.floor.errors import BrokerError, KernelFailure, StateError, SupersededError
from torchloom_core.live.kernel.kernel import Kernel
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.transport import NatsBus, connection
from torchloom_core.live.transport.broker import EmbeddedBroker
from torchloom_core.live.transport.jetstream import JetStream
from torchloom_core.live.transport.state_bucket import StateBucket
from torchloom_core.live.weaver import run, startup
from torchloom_core.live.weaver.standby import Room

pytestmark = pytest.mark.integration

STEPS = [
    (NatsBus, "connect"),
    (JetStream, "check"),
    (JetStream, "make"),
    (StateBucket, "claim_epoch"),
    (StateBucket, "left"),
    (NatsBus, "store"),
    (StateBucket, "take_over"),
    (NatsBus, "open"),
    (NatsBus, "serve"),
    (NatsBus, "on_epoch"),
    (NatsBus, "roll_call"),
    (NatsBus, "serve_join"),
]


class Start:
    """One Weaver in this process, with its broker in a process of its own."""

    def __init__(self, folder):
        self.state = folder / "state"
        self.config = parse(f"[weaver]\nstate_dir = '{self.state}'")
        self.brokers = []
        self.was_ready = False

    async def run(self, **options):
        """Run a Weaver that is stopped as soon as it is ready."""

        def ready(url, lighthouse):
            self.was_ready = True
            os.kill(os.getpid(), signal.SIGTERM)

        async with asyncio.timeout(DEADLINE_S):
            await run(self.config, ActivePlugins((), {}), ready, **options)

    @property
    def server(self):
        """The nats-server that runs on this state folder, or None."""
        for process in psutil.process_iter(["cmdline"]):
            if str(self.state / "broker" / "nats.conf") in (process.info["cmdline"] or ()):
                return process
        return None


@pytest.fixture
async def start(tmp_path):
    begun = Start(tmp_path)
    yield begun
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    if begun.server is not None:
        begun.server.kill()


def plant(monkeypatch, cls, name, strike):
    """Have ``strike()`` called once, when the step begins."""
    original = getattr(cls, name)
    struck = []

    if name == "connect":

        async def connect(*arguments, **options):
            if not struck:
                struck.append(strike())
            return await original(*arguments, **options)

        monkeypatch.setattr(cls, name, connect)
        return

    async def step(self, *arguments, **options):
        if not struck:
            struck.append(strike())
        return await original(self, *arguments, **options)

    monkeypatch.setattr(cls, name, step)


@pytest.mark.long
@pytest.mark.parametrize(("cls", "name"), STEPS, ids=[name for _, name in STEPS])
async def test_a_broker_that_is_killed_at_any_step_of_a_start_is_waited_for(
    start, monkeypatch, cls, name
):
    plant(monkeypatch, cls, name, lambda: start.server.kill())
    await start.run()
    assert start.was_ready
    assert start.server is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "name"),
    [(StateBucket, "left"), (StateBucket, "take_over"), (NatsBus, "open"), (NatsBus, "on_epoch")],
)
async def test_a_broker_that_stalls_at_a_step_of_a_start_is_waited_for(
    start, monkeypatch, part, name
):
    def stall():
        server = start.server
        server.suspend()
        asyncio.get_running_loop().call_later(1.0, server.resume)

    plant(monkeypatch, part, name, stall)
    await start.run()
    assert start.was_ready


@pytest.mark.long
async def test_a_broker_that_stays_away_ends_the_start_with_one_line(start, monkeypatch):
    monkeypatch.setattr(connection, "RETRY_S", 0.3)

    async def gone(self):
        await asyncio.Event().wait()

    monkeypatch.setattr(EmbeddedBroker, "supervise", gone)
    plant(monkeypatch, NatsBus, "open", lambda: start.server.kill())
    with pytest.raises(BrokerError, match=r"need an answer within 0\.3 s") as caught:
        await start.run()
    folder = start.state / "broker"
    remedy = f"{folder}/nats.log; to start the run afresh, delete its store {folder}/jetstream"
    assert remedy in str(caught.value)
    assert not start.was_ready


async def test_a_start_that_fails_leaves_no_server_that_it_launched(start, monkeypatch):
    async def fail(self):
        raise StateError("no")

    monkeypatch.setattr(StateBucket, "left", fail)
    with pytest.raises(StateError, match="no"):
        await start.run()
    assert start.server is None


async def test_a_start_that_fails_leaves_the_server_that_was_there(start, monkeypatch):
    broker = EmbeddedBroker(start.state, "run")
    await broker.start()

    async def fail(self):
        raise StateError("no")

    monkeypatch.setattr(StateBucket, "left", fail)
    with pytest.raises(StateError, match="no"):
        await start.run()
    assert broker.is_alive()


async def test_a_standby_that_fails_right_after_its_take_over_stands_by_again(
    start, monkeypatch, caplog
):
    monkeypatch.setattr(startup, "_AGAIN_S", 0.1)
    caplog.set_level("INFO")

    def fail():
        raise StateError("state/events: cannot be written: No space left on device")

    struck = iter((fail, lambda: None, lambda: None))
    left = StateBucket.left

    async def failing_once(self):
        next(struck)()
        return await left(self)

    monkeypatch.setattr(StateBucket, "left", failing_once)
    await start.run(standby=True)
    assert start.was_ready
    assert "No space left on device; standing by again" in caplog.text
    assert "no Weaver has led it before" in caplog.text


async def test_a_standby_on_a_full_disk_says_so_once(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    room = Room(file / "run")
    assert not await room.is_there()
    assert not await room.is_there()
    assert caplog.text.count("cannot be written: going on standing by") == 1
    file.unlink()
    assert await room.is_there()


async def test_a_start_that_is_superseded_leaves_the_server_to_its_successor(start, monkeypatch):
    async def overtaken(self):
        raise SupersededError("another Weaver took over run run")

    monkeypatch.setattr(StateBucket, "take_over", overtaken)
    with pytest.raises(SupersededError):
        await start.run()
    assert start.server is not None


async def test_of_two_weavers_that_start_at_once_the_later_continues(start, monkeypatch):
    take_over, overtaken = StateBucket.take_over, []

    async def late(self):
        if not overtaken:
            overtaken.append(self.epoch)
            await self._bucket.put("whole", str(self.epoch - 1).encode())
        await take_over(self)

    monkeypatch.setattr(StateBucket, "take_over", late)
    await start.run()
    assert start.was_ready
    begun = [record.meta.epoch for record in read_epochs(run_folder(start.state, "run"))]
    assert begun == [overtaken[0], overtaken[0] + 1]


async def test_a_start_that_hangs_is_ended_by_sigterm(start, monkeypatch):
    begun = asyncio.Event()

    async def hang(self):
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(StateBucket, "left", hang)
    running = asyncio.create_task(start.run())
    await begun.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    before = time.monotonic()
    await running
    assert not start.was_ready
    assert start.server is None
    assert time.monotonic() - before < startup._PATIENCE_S


async def test_a_kernel_that_fails_ends_the_weaver_with_one_line_and_the_input_on_record(
    start, monkeypatch
):
    step = Kernel.step

    def fails(self, message, ts_ns):
        if type(message).__name__ == "Tick":
            raise ZeroDivisionError("a fault of ours")
        return step(self, message, ts_ns)

    monkeypatch.setattr(Kernel, "step", fails)

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(KernelFailure) as caught:
            await run(start.config, ActivePlugins((), {}))
    (record,) = read_epochs(run_folder(start.state, "run"))
    assert str(caught.value).startswith(f"{record.folder}: input ")
    assert "Tick: ZeroDivisionError: a fault of ours (test_startup.py:" in str(caught.value)
    assert "\n" not in str(caught.value)
    last = list(record.lines())[-2:]
    assert [line.kind for line in last] == ["tick", "input_failed"]
    assert b"Traceback" in bytes(last[1].body)
    monkeypatch.setattr(Kernel, "step", step)
    await start.run()  # the next Weaver starts cleanly
    assert start.was_ready


@pytest.mark.long
def test_a_weaver_whose_output_cannot_be_written_continues(tmp_path):
    command = [sys.executable, "-m", "torchloom_core.cli", "weaver"]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True
        ) as weaver,
    ):
        line = ""
        while "standard output cannot be written: No space left" not in line:
            line = weaver.stderr.readline()
            assert line, "the Weaver has ended"
        weaver.terminate()
        assert weaver.wait(DEADLINE_S) == 0
