"""A relay leads one fixed address to the lighthouse that serves now."""

import asyncio
import contextlib
import subprocess
import sys

import grpc
import pytest

from experiments.lighthouse.calls import Calls
from tests.waiting import eventually, until
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.lighthouse.relay import Choice, Relay
from torchloom_core.live.transport.ports import lasting_port

A, B = ("a", 1), ("b", 1)


@pytest.mark.parametrize(
    ("looks", "chosen"),
    [
        ([(0, {A: 5, B: None})], A),
        ([(0, {A: 5, B: None}), (1, {A: None, B: None}), (100, {A: None, B: None})], A),
        ([(0, {A: 5, B: None}), (1, {A: None, B: None}), (2, {A: 5, B: 6})], B),
        ([(0, {A: 5, B: 6}), (1, {A: 5, B: None}), (59, {A: 5, B: None})], B),
        ([(0, {A: 5, B: 6}), (1, {A: 5, B: None}), (61, {A: 5, B: None})], A),
        ([(0, {A: 5, B: 6}), (50, {A: 5, B: 6}), (61, {A: 5, B: None})], B),
        ([(0, {A: 5, B: 6}), (1, {A: 7, B: None})], A),
    ],
    ids=str,
)
def test_the_one_that_was_declared_last_is_chosen_of_those_that_answer(looks, chosen):
    choice = Choice()
    for now_s, look in looks:
        choice.is_changed_by(look, now_s)
    assert choice.place == chosen


@pytest.fixture
def started():
    processes = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.integration
@pytest.mark.long
async def test_managers_reach_another_lighthouse_at_the_same_address(tmp_path, started):
    ports = [lasting_port("127.0.0.1") for _ in range(2)]
    urls = []

    def start(port):
        command = [sys.executable, "-m", "torchloom_core.cli", "lighthouse", "--min_replicas", "1"]
        command += ["--bind", f"127.0.0.1:{port}", "--status_bind", ""]
        out = tmp_path / f"{port}.out"
        with out.open("w") as file:
            started.append(subprocess.Popen(command, stdout=file))
        until(lambda: "is ready" in out.read_text())

    await asyncio.to_thread(start, ports[0])
    relay = Relay([("127.0.0.1", port) for port in ports])
    serving = asyncio.create_task(relay.serve(("127.0.0.1", 0), urls.append))
    await eventually(lambda: urls)
    calls = Calls(urls[0].removeprefix("http://"))

    async def quorum_id():
        with contextlib.suppress(grpc.aio.AioRpcError):
            return (await calls.request("g0:1", step=1)).quorum_id
        return 0

    first = await eventually(quorum_id)
    await asyncio.to_thread(start, ports[1])

    async def is_another():
        return await quorum_id() not in (0, first, first + 1)

    await eventually(is_another)
    await calls.close()
    await end_all(serving)
