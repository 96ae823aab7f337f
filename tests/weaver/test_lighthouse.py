"""A Weaver's lighthouse: started, adopted, restarted, and left running for training groups."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys

import grpc
import psutil
import pytest

from experiments.lighthouse.calls import Calls
from tests.deadlines import DEADLINE_S
from tests.waiting import eventually, soon
from torchloom_core.config.loading import parse
from torchloom_core.floor.errors import LighthouseError, StateError
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.kernel.plugins.host import ActivePlugins
from torchloom_core.live.weaver import lighthouse_process, run

pytestmark = pytest.mark.integration

TABLE = "[lighthouse]\nport = {}\nstatus_port = 0\nheartbeat_timeout_s = {}\n"


class LighthouseRuns:
    """Weavers on one state folder, one after the other."""

    def __init__(self, folder):
        self.folder = folder
        self.task = None
        self.lighthouse_url = ""

    async def start(self, port=0, heartbeat_timeout_s=5.0):
        table = TABLE.format(port, heartbeat_timeout_s)
        config = parse(f"[weaver]\nstate_dir = '{self.folder}'\n{table}")
        ready = asyncio.get_running_loop().create_future()
        running = run(config, ActivePlugins((), {}), lambda *where: ready.set_result(where))
        self.task = asyncio.create_task(running)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait({self.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        self.lighthouse_url = (await ready)[1]

    async def stop(self):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self.task, DEADLINE_S)

    @property
    def pid(self):
        record = json.loads((self.folder / "lighthouse" / "lighthouse.json").read_text())
        return record["pid"]

    @property
    def runs(self):
        return psutil.pid_exists(self.pid) and psutil.Process(self.pid).status() != "zombie"


@pytest.fixture
async def lighthouse_runs(tmp_path):
    begun = LighthouseRuns(tmp_path)
    yield begun
    if begun.task and not begun.task.done():
        await begun.stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    record = tmp_path / "lighthouse" / "lighthouse.json"
    if record.exists() and begun.runs:
        os.kill(begun.pid, signal.SIGKILL)


@pytest.fixture
async def group(lighthouse_runs):
    """A living replica group in a quorum, with a pending heartbeat."""
    await lighthouse_runs.start()
    calls = Calls(lighthouse_runs.lighthouse_url.removeprefix("http://"))
    beating = asyncio.create_task(beat(calls))
    answer = await asyncio.wait_for(calls.request("g0:uuid"), DEADLINE_S)
    yield answer
    await end_all(beating)
    await calls.close()


async def asked_again(url):
    """Send requests as a Manager does while the lighthouse is away."""
    calls = Calls(url.removeprefix("http://"))
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return await calls.request("g0:uuid")
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.1)
    finally:
        await calls.close()


async def beat(calls):
    while True:
        try:
            await calls.heartbeat("g0:uuid")
        except grpc.aio.AioRpcError:  # the lighthouse is away
            await asyncio.sleep(0.1)


async def test_an_unused_lighthouse_ends_with_its_weaver(lighthouse_runs):
    await lighthouse_runs.start()
    assert lighthouse_runs.runs
    await lighthouse_runs.stop()
    assert not lighthouse_runs.runs


@pytest.mark.long
async def test_a_killed_lighthouse_is_restarted_at_its_address_with_its_state(
    lighthouse_runs, group
):
    url, pid = lighthouse_runs.lighthouse_url, lighthouse_runs.pid
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: lighthouse_runs.pid != pid)
    assert lighthouse_runs.lighthouse_url == url
    again = await asked_again(url)
    assert (again.quorum_id, again.replicas) == (group.quorum_id, group.replicas)


@pytest.mark.long
async def test_a_lighthouse_in_use_keeps_running_and_the_next_weaver_adopts_it(
    lighthouse_runs, group, caplog
):
    pid = lighthouse_runs.pid
    await lighthouse_runs.stop()
    assert lighthouse_runs.runs
    assert (
        f"the lighthouse keeps running for the groups that train: kill {pid} ends it" in caplog.text
    )
    caplog.clear()
    caplog.set_level(logging.INFO)
    await lighthouse_runs.start()
    assert lighthouse_runs.pid == pid
    await eventually(lambda: "a lighthouse started without earlier state" in caplog.text)


@pytest.mark.long
async def test_a_lighthouse_whose_last_group_ends_with_the_weaver_ends_too(
    lighthouse_runs, monkeypatch
):
    sent, kill = [], os.kill

    def spy(pid, number):
        kill(pid, number)
        sent.append(number)

    monkeypatch.setattr(os, "kill", spy)
    await lighthouse_runs.start()
    calls = Calls(lighthouse_runs.lighthouse_url.removeprefix("http://"))
    beating = asyncio.create_task(beat(calls))
    await asyncio.wait_for(calls.request("g0:uuid"), DEADLINE_S)
    stopping = asyncio.create_task(lighthouse_runs.stop())
    await eventually(lambda: signal.SIGUSR1 in sent)
    assert lighthouse_runs.runs
    await end_all(beating)
    await calls.close()
    await stopping
    assert not lighthouse_runs.runs


async def test_a_frozen_lighthouse_is_left_running_and_logged(lighthouse_runs, monkeypatch, caplog):
    monkeypatch.setattr(lighthouse_process, "_STOP_S", 0.3)
    await lighthouse_runs.start()
    pid = lighthouse_runs.pid
    os.kill(pid, signal.SIGSTOP)
    await lighthouse_runs.stop()
    assert f"the lighthouse is frozen: kill -9 {pid} ends it" in caplog.text


@pytest.mark.long
async def test_a_lighthouse_with_another_config_is_restarted_with_its_state(lighthouse_runs, group):
    pid = lighthouse_runs.pid
    await lighthouse_runs.stop()
    await lighthouse_runs.start(heartbeat_timeout_s=7.0)
    assert lighthouse_runs.pid != pid
    again = await asked_again(lighthouse_runs.lighthouse_url)
    assert again.quorum_id == group.quorum_id


async def test_a_lighthouse_that_cannot_be_recorded_is_stopped(lighthouse_runs):
    in_the_way = lighthouse_runs.folder / "lighthouse" / "lighthouse.json.new"
    in_the_way.mkdir(parents=True)
    with pytest.raises(StateError, match=r"lighthouse\.json"):
        await lighthouse_runs.start()
    in_the_way.rmdir()
    await lighthouse_runs.start()
    assert lighthouse_runs.runs


@pytest.mark.long
async def test_any_port_is_another_one_where_the_last_was_taken_meanwhile(lighthouse_runs):
    await lighthouse_runs.start()
    await lighthouse_runs.stop()
    port = int(lighthouse_runs.lighthouse_url.rpartition(":")[2])
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with listener:
        await lighthouse_runs.start()
        assert int(lighthouse_runs.lighthouse_url.rpartition(":")[2]) != port


@pytest.mark.long
async def test_an_unrecorded_lighthouse_is_named_and_the_record_retained(lighthouse_runs):
    await lighthouse_runs.start()
    record = lighthouse_runs.folder / "lighthouse" / "lighthouse.json"
    known = record.read_text()
    await lighthouse_runs.stop()
    command = [sys.executable, "-m", "torchloom_core.cli", "lighthouse", "--min_replicas", "1"]
    command += ["--bind", "127.0.0.1:0", "--status_bind", ""]
    command += ["--state", str(lighthouse_runs.folder / "lighthouse" / "state.json")]
    started = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert b"is ready" in await soon(started.stdout.readline())
    try:
        with pytest.raises(LighthouseError, match=f"uses this state, pid {started.pid};"):
            await lighthouse_runs.start()
        assert record.read_text() == known
    finally:
        started.kill()
        await started.wait()


class OtherHost:
    """A run whose lighthouse was on another host, which is gone."""

    def __init__(self, folder, third=""):
        self._folder = folder
        self._third = third
        self.before = None
        self.since_ns = 1
        self.is_up = False

    async def elsewhere(self, _):
        return "http://gone:1"

    async def is_gone(self, _):
        return not self.before

    async def answers(self, _):
        return self.is_up

    async def take(self, url, _, *, instead_of):
        files = [file.name for file in (self._folder / "lighthouse").iterdir()]
        self.before = url, instead_of, files
        return self._third


async def test_a_lighthouse_is_ended_only_once_the_one_that_replaces_it_answers(
    lighthouse_runs, monkeypatch
):
    """A Weaver that declared its own may be unable to start it: its port is taken."""
    monkeypatch.setattr(lighthouse_process, "_RETIRE_S", 0.01)
    await lighthouse_runs.start()
    settings = parse(TABLE.format(0, 5.0)).lighthouse
    process = lighthouse_process.LighthouseProcess(lighthouse_runs.folder, "run", settings)
    place = OtherHost(lighthouse_runs.folder)
    looks, answers = [], place.answers

    async def look(url):
        looks.append(url)
        return await answers(url)

    place.answers = look
    retiring = asyncio.create_task(process.retire(place))
    try:
        await eventually(lambda: len(looks) > 3)
        pid = lighthouse_runs.pid
        assert lighthouse_runs.runs
        place.is_up = True
        await eventually(lambda: lighthouse_runs.pid != pid or not lighthouse_runs.runs)
    finally:
        await end_all(retiring)


@pytest.mark.parametrize("third", ["", "http://third:1"])
async def test_a_lighthouse_that_replaces_another_hosts_is_declared_before_it_serves(
    tmp_path, third
):
    """Killed in between, the next Weaver here would go back to the quorum of the old state."""
    place = OtherHost(tmp_path, third)
    (tmp_path / "lighthouse").mkdir()
    (tmp_path / "lighthouse" / "state.json").write_text("{}")
    settings = parse(TABLE.format(0, 5.0)).lighthouse
    process = lighthouse_process.LighthouseProcess(tmp_path, "live", settings)
    await process.start("nats://127.0.0.1:9", None, tuple, place)
    supervising = asyncio.create_task(process.supervise())
    try:
        await eventually(lambda: place.before and process.url != "http://gone:1")
        url, gone, files = place.before
        assert (gone, files) == ("http://gone:1", [])
        record = tmp_path / "lighthouse" / "lighthouse.json"
        if third:
            assert process.url == third
            assert not record.exists()
        else:
            await eventually(record.exists)
            assert process.url == url
    finally:
        await end_all(supervising)
        await process.stop_unless_needed()
