"""A rendezvous in a process of its own, and workers that are plain TCP clients."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys

import msgspec
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import soon
from torchloom_core.wire.generations import (
    Beat,
    Begin,
    ExpertLayer,
    ExpertState,
    Fault,
    FromRendezvous,
    Halt,
    Join,
    Leave,
    Mirror,
    Regroup,
    Stop,
    Stopped,
)

pytestmark = pytest.mark.integration


class Client:
    """One connection of a worker."""

    def __init__(self, reader, writer, name):
        self._reader, self._writer, self.name = reader, writer, name

    def send(self, message):
        self.write(msgspec.json.encode(message) + b"\n")

    def write(self, data):
        self._writer.write(data)

    async def next(self, kind):
        """Return the next message of this kind."""
        while line := await soon(self._reader.readline()):
            message = msgspec.json.decode(line, type=FromRendezvous)
            if isinstance(message, kind):
                return message
        raise EOFError(self.name)

    async def has_ended(self):
        while await soon(self._reader.readline()):
            pass
        return True

    async def end(self):
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def stopped(self, begin, **fields):
        layers = begin.assignment.layers_of(self.name)
        number = begin.assignment.generation
        self.send(Stopped(generation=number, layers=layers, **fields))


@pytest.fixture
def start(tmp_path):
    """Return a function that starts a rendezvous and returns its port."""
    running = []

    def begin(*options):
        if running:
            running[-1].kill()
            running[-1].wait()
        patient = () if "--heartbeat-timeout-s" in options else ("--heartbeat-timeout-s", 300)
        options = map(str, [*patient, *options])
        command = [sys.executable, "-m", "torchloom_core.cli", "rendezvous", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
        running.append(process)
        return int(process.stdout.readline().rsplit(":", 1)[1])

    yield begin
    for process in running:
        process.send_signal(signal.SIGTERM)
        assert process.wait() in (0, -signal.SIGKILL)
        process.stdout.close()


@pytest.fixture
async def connect():
    """Return a function that connects to a port, and joins under a name if there is one."""
    clients = []

    async def connected(port, name="", **fields):
        client = Client(*await asyncio.open_connection("127.0.0.1", port), name)
        clients.append(client)
        own = {"incarnation": 1, "store": f"{name}:1", "layers": 4, "replicas": 2}
        if name:
            client.send(
                Join(
                    worker=name, **(own | {"micro_batches": 4, "layer_bytes": (1000,) * 4} | fields)
                )
            )
        return client

    yield connected
    for client in clients:
        await client.end()


async def all_begin(clients):
    return [await client.next(Begin) for client in clients]


async def test_workers_are_taken_from_a_loss_over_a_joiner_to_the_end(start, connect):
    port = start("--workers", 4, "--bind", "127.0.0.1:0")
    clients = [await connect(port, f"w{n}") for n in range(4)]
    begins = await all_begin(clients)
    assert [begin.assignment.generation for begin in begins] == [1] * 4
    assert [len(route) for route in begins[0].assignment.routes] == [2, 2]

    await clients.pop(1).end()
    for client in clients:
        assert (await client.next(Stop)).generation == 1
    clients[0].stopped(begins[0], committed=6, reduced=7)
    clients[1].stopped(begins[0], committed=7, reduced=7)
    clients[2].stopped(begins[0], committed=6, reduced=7)
    begins = await all_begin(clients)
    assert {begin.committed for begin in begins} == {7}
    second = begins[0].assignment
    assert second.generation == 2
    assert "w1" not in second.workers
    assert {copy.target for copy in begins[0].copies} == {"w0"}

    clients.append(await connect(port, "w1", incarnation=2))
    asked = [await client.next(Regroup) for client in clients[:3]]
    assert {one.next for one in asked} == {3}
    for client in clients[:3]:
        client.stopped(begins[0], committed=8, reduced=8)
    begins = await all_begin(clients)
    assert sorted(begins[0].assignment.workers) == ["w0", "w1", "w2", "w3"]
    assert {copy.target for copy in begins[0].copies} == {"w1"}

    for client in clients:
        client.send(Leave(finished=True, committed=20))
    assert {(await client.next(Halt)).status for client in clients} == {"finished"}


async def test_workers_that_end_after_different_steps_are_ended_with_the_reason(start, connect):
    port = start("--workers", 2, "--bind", "127.0.0.1:0")
    clients = [await connect(port, f"w{n}", replicas=1) for n in range(2)]
    begin, _ = await all_begin(clients)
    clients[0].send(Leave(finished=True, committed=4))
    clients[1].send(Fault(generation=1, detail="a peer is gone"))
    await clients[1].next(Stop)
    clients[1].stopped(begin, committed=4)
    halt = await clients[1].next(Halt)
    assert halt.status == "lost"
    assert halt.why.startswith("w1 goes on after step 4, the last one of a worker")


async def test_a_lost_expert_is_taken_from_a_peers_memory_or_left_out(start, connect):
    port = start("--workers", 3, "--bind", "127.0.0.1:0")
    layers = (ExpertLayer(6, 1000),)
    clients = [await connect(port, f"w{n}", replicas=3, expert_layers=layers) for n in range(3)]
    begin, *_ = await all_begin(clients)
    assert begin.assignment.experts == (("w0",), ("w0",), ("w1",), ("w1",), ("w2",), ("w2",))
    await clients[0].end()
    for client, experts, memory in (clients[1], (2, 3), (Mirror(1, 2),)), (clients[2], (4, 5), ()):
        await client.next(Stop)
        state = ExpertState(mirrors=memory)
        client.stopped(begin, committed=3, experts=experts, expert_state=state)
    begin = await clients[1].next(Begin)
    assert begin.assignment.experts == ((), ("w1",), ("w1",), ("w1",), ("w2",), ("w2",))
    assert "expert 1 from w1's memory, 1 steps old; expert 0 left out" in begin.assignment.why
    assert not begin.expert_copies


async def test_a_program_ends_with_its_last_expert(start, connect):
    port = start("--workers", 2, "--bind", "127.0.0.1:0")
    layers = (ExpertLayer(1), ExpertLayer(2))
    clients = [await connect(port, f"w{n}", expert_layers=layers) for n in range(2)]
    begin, _ = await all_begin(clients)
    assert begin.assignment.experts == (("w0",), ("w0",), ("w1",))
    await clients[0].end()
    await clients[1].next(Stop)
    clients[1].stopped(begin, committed=3, experts=(2,))
    why = (await clients[1].next(Halt)).why
    assert why.startswith("expert 0: all workers that held them have ended")


async def test_a_lost_layer_ends_the_program_with_the_reason(start, connect):
    port = start("--workers", 2, "--bind", "127.0.0.1:0")
    clients = [await connect(port, f"w{n}", replicas=1) for n in range(2)]
    begin, _ = await all_begin(clients)
    await clients[0].end()
    await clients[1].next(Stop)
    clients[1].stopped(begin, committed=3, reduced=3)
    halt = await clients[1].next(Halt)
    assert halt.status == "lost"
    assert halt.why.startswith("layers 0, 1: all workers that held them have ended")


async def test_who_looks_sees_the_assignment_and_what_would_follow(start, connect):
    port = start("--workers", 4, "--bind", "127.0.0.1:0")
    clients = [await connect(port, f"w{n}") for n in range(3)]
    assert "waits for 1 more" in (await torchloom_plan(port))[1]
    clients.append(await connect(port, "w3"))
    await all_begin(clients)
    clients[0].send(Beat(committed=4, layer_s=(0.01, 0.01, 0.0, 0.0)))
    clients[1].send(Beat(committed=4, layer_s=(0.0, 0.0, 0.01, 0.01)))
    async with asyncio.timeout(DEADLINE_S):
        while not (shown := json.loads((await torchloom_plan(port, "--json"))[0]))["is_measured"]:
            pass
    assert shown["step_ms"] == pytest.approx(100)
    assert [len(loss["answers"]) for loss in shown["losses"]] == [1] * 4
    lost = json.loads((await torchloom_plan(port, "--json", "--lose", "w0", "--lose", "w2"))[0])
    assert lost["losses"] == [{"lost": ["w0", "w2"], "answers": []}]
    assert "at risk" in (await torchloom_plan(port, "--workers", "1"))[0]
    assert "no such worker" in (await torchloom_plan(port, "--lose", "w9"))[1]


async def torchloom_plan(port, *options):
    """Return what ``torchloom plan`` prints, and its errors."""
    where = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "torchloom_core.cli", "plan", "--rendezvous", where, *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, **pipes)
    return [text.decode() for text in await soon(process.communicate())]


async def test_what_does_not_fit_is_refused_and_harms_no_one(start, connect):
    port = start("--workers", 2, "--bind", "127.0.0.1:0")
    first = await connect(port, "w0", incarnation=5)
    other = await connect(port, "w1", layers=5, layer_bytes=(1000,) * 5)
    assert (await other.next(Halt)).why == "w1: layers: need 4, as other workers have, was 5"
    nowhere = await connect(port, "w1", store="nowhere")
    assert (await nowhere.next(Halt)).why == "w1: store: need host:port, was 'nowhere'"
    old = await connect(port, "w0", incarnation=4)
    assert "started later" in (await old.next(Halt)).why
    stop = b'{"type":"stop","generation":1}'
    for data in (b"{}\n", b"\xff" * 100 + b"\n", stop + b"\n", b"[" * 2_000_000):
        odd = await connect(port)
        odd.write(data + b"\n")
        assert await odd.has_ended()
    second = await connect(port, "w1")
    begin, _ = await all_begin([first, second])
    second.send(Stopped(generation=9, committed=0))
    second.write(b'{"type":"stopped","generation":"one"}\n')
    assert await second.has_ended()
    assert (await first.next(Stop)).generation == begin.assignment.generation


async def test_a_restarted_rendezvous_goes_on_in_the_same_generation(start, connect, tmp_path):
    options = ("--workers", 2, "--state", tmp_path / "state", "--bind", "127.0.0.1:0")
    port = start(*options)
    await all_begin([await connect(port, f"w{n}") for n in range(2)])
    port = start(*options)
    clients = [await connect(port, f"w{n}", generation=1) for n in range(2)]
    await clients[0].end()
    assert (await clients[1].next(Stop)).generation == 1


async def test_a_state_of_which_no_worker_is_left_holds_nobody_up(start, connect, tmp_path):
    options = ("--workers", 2, "--state", tmp_path / "state", "--bind", "127.0.0.1:0")
    options += ("--heartbeat-timeout-s", 0.5)
    port = start(*options)
    await all_begin([await connect(port, f"w{n}") for n in range(2)])
    port = start(*options)
    other = {"layers": 3, "layer_bytes": ()}  # another program
    clients = [await connect(port, f"w{n}", **other) for n in range(2)]
    assert {begin.assignment.layers for begin in await all_begin(clients)} == {3}
    for client in clients:
        client.send(Leave(finished=True, committed=1))
    assert {(await client.next(Halt)).status for client in clients} == {"finished"}
    assert not (tmp_path / "state").exists()
