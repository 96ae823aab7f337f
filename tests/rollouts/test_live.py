"""A rollout queue in a process of its own, its clients in this one and in others."""

import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, contextmanager

import pytest
import torch

from tests.deadlines import DEADLINE_S
from tests.nats_servers import free_ports
from tests.waiting import until
from torchloom_core.floor.errors import RolloutError
from torchloom_core.wire.rollouts import LENGTHS
from torchloom_threadlet.rollouts import RolloutSink, RolloutSource
from torchloom_threadlet.rollouts.payload import encode_weights

pytestmark = pytest.mark.integration


def start(port, *options):
    command = [sys.executable, "-m", "torchloom_core.cli", "rollout-queue"]
    process = subprocess.Popen(
        [*command, "--bind", f"127.0.0.1:{port}", *options], stdout=subprocess.PIPE, text=True
    )
    assert "ready" in process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


@contextmanager
def served(*options):
    """Serve a queue, and give its address."""
    (port,) = free_ports(1)
    process = start(port, *options)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture
def client():
    """Connect a source or a sink, until the test is over."""
    with ExitStack() as opened:

        def connect(kind, address, timeout_s=DEADLINE_S):
            return opened.enter_context(closing(kind(address, timeout_s=timeout_s)))

        yield connect


@pytest.fixture
def ends(client):
    return lambda address: (client(RolloutSource, address), client(RolloutSink, address))


def test_batches_and_weights_arrive_as_they_were_sent(ends):
    weight = torch.arange(6.0).reshape(2, 3)
    with served() as address:
        source, sink = ends(address)
        assert source.publish({"a": weight, "tied": weight}) == 0
        got = sink.newer_weights()
        assert torch.equal(got["a"], weight)
        assert torch.equal(got["tied"], weight)
        assert sink.newer_weights() is None
        positions = sink.positions(2)
        assert sink.put({"ids": [[1, 2], [3]], "logprobs": weight, "text": "x"}, positions)
        (rollout,) = source.take()
    assert (rollout.version, rollout.positions) == (0, (0, 1))
    assert rollout.batch["ids"] == [[1, 2], [3]]
    assert torch.equal(rollout.batch["logprobs"], weight)


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        (torch.nn.Linear(1, 1), "need tensors by name, such as .*was a torch.nn.*Linear"),
        ({"a": torch.ones(1).to_sparse()}, "a: need a dense tensor, was torch.sparse_coo"),
        ({"a": [1.0]}, "a: need a dense tensor, was list"),
    ],
)
def test_what_is_not_dense_tensors_by_name_is_not_published(weights, why):
    with pytest.raises(RolloutError, match=why):
        encode_weights(weights)


def test_a_worker_waits_while_the_queue_is_full_and_measures_it(ends):
    with served("--max-batches", "1") as address:
        source, sink = ends(address)
        source.publish({})
        sink.newer_weights()
        sink.put({"n": 0})
        second = threading.Thread(target=sink.put, args=({"n": 1},))
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert [source.take()[0].batch["n"] for _ in range(2)] == [0, 1]
        second.join()
        assert sink.metrics()["queue_wait_s"] >= 0.2
        assert source.metrics()["weights_version"] == 0


def test_both_roles_wait_for_a_queue_that_was_killed_and_go_on_with_a_new_one(client, ends):
    (port,) = free_ports(1)
    process = start(port)
    try:
        source, sink = ends(f"127.0.0.1:{port}")
        source.publish({"a": torch.ones(1)})
        sink.newer_weights()
        assert sink.positions(3) == (0, 1, 2)
        end(process)
        put = threading.Thread(target=sink.put, args=({"n": 1}, (0,)))
        put.start()
        process = start(port)
        assert source.take()[0].batch == {"n": 1}
        put.join()
        assert sink.positions(1) == (3,)
        joined = client(RolloutSink, f"127.0.0.1:{port}")
        assert joined.newer_weights()["a"] == 1
        assert joined.version == 0
    finally:
        end(process)


def test_a_killed_worker_leaves_nothing_half_done_and_its_prompts_go_to_another(client):
    program = (
        "import sys, time\n"
        "from torchloom_threadlet.rollouts import RolloutSink\n"
        "sink = RolloutSink(sys.argv[1]); print(sink.positions(2), flush=True); time.sleep(999)"
    )
    with served() as address:
        worker = subprocess.Popen(
            [sys.executable, "-c", program, address], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout.readline() == "(0, 1)\n"
        end(worker)
        sink = client(RolloutSink, address)
        given = [sink.positions(1)[0]]
        until(lambda: given.append(sink.positions(1)[0]) or {0, 1} <= set(given))


def test_a_trainer_that_starts_again_numbers_its_weights_on(ends):
    with served() as address:
        source, sink = ends(address)
        source.publish({"a": torch.zeros(1)})
        source.publish({"a": torch.zeros(1)})
        assert ends(address)[0].publish({"a": torch.ones(1)}) == 2
        assert sink.newer_weights()["a"] == 1


def test_what_breaks_a_rule_is_refused_with_one_line(client, ends):
    with served("--max-batch-mb", "1") as address:
        source, sink = ends(address)
        source.publish({})
        with pytest.raises(RolloutError, match="need at most 1000000 bytes, was 2000"):
            sink.put({"long": "x" * 2_000_000})
        with pytest.raises(RolloutError, match=r"need numbers.*was a builtins\.object"):
            sink.put({"what": object()})
        with pytest.raises(RolloutError, match=r"no rollouts for 0\.1 s"):
            client(RolloutSource, address, 0.1).take()
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as odd:
            odd.sendall(LENGTHS.pack(2**31, 0))
            assert odd.recv(1) == b""
        assert sink.put({"short": 1})
    with pytest.raises(RolloutError, match=r"127\.0\.0\.1:1: no answer for 0\.1 s"):
        client(RolloutSink, "127.0.0.1:1", 0.1).positions(1)
    with pytest.raises(RolloutError, match="TORCHLOOM_ROLLOUT_QUEUE: need host:port, was 'here'"):
        RolloutSource("here")


def test_a_queue_ends_in_order(client):
    (port,) = free_ports(1)
    process = start(port)
    try:
        sink = client(RolloutSink, f"127.0.0.1:{port}")
        sink.positions(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        end(process)
