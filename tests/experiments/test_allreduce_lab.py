"""The lab of network namespaces: what it carries, what it leaves, and one run in it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.allreduce import lab as lab_module
from experiments.allreduce.arm import Arm, Settings, play_arm
from experiments.allreduce.lab import EXIT_NOT_HERE
from experiments.allreduce.model import Workload
from experiments.allreduce.schedule import steps
from experiments.allreduce.uneven import set_pairs
from torchloom_core.demos.bandwidth import namespaces
from torchloom_core.demos.bandwidth.namespaces import Lab, NoLabError, Rate, reason_for_none

PORT = 9000
RECEIVER = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", {port}))
print("ready", flush=True)
peer, _ = server.accept()
began, got = None, 0
while part := peer.recv(1 << 16):
    began = began or time.perf_counter()
    got += len(part)
print(got * 8 / 1e6 / (time.perf_counter() - began))
"""
SENDER = """
import socket, sys
peer = socket.create_connection((sys.argv[1], {port}))
peer.sendall(bytes(int(sys.argv[2])))
peer.close()
"""


@pytest.fixture
def name(request):
    return f"t{abs(hash(request.node.name)) % 10_000}"


@pytest.fixture
def lab(name):
    if reason := reason_for_none():
        pytest.skip(f"no lab here: {reason}")
    with Lab(2, name) as there:
        yield there
    assert there.left() == []


def carried_mbit(lab, sent_bytes):
    """Send so much from rank 0 to rank 1, and return at which rate it came."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(
        lab.inside(1, [*python, RECEIVER.format(port=PORT)]), stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout.readline() == "ready\n"
        sender = [*python, SENDER.format(port=PORT), lab.address(1), str(sent_bytes)]
        subprocess.run(lab.inside(0, sender), check=True)
        return float(receiver.stdout.read())


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize(
    ("change", "mbit"),
    [
        (lambda lab: lab.set_rates([Rate.both(100.0)] * 2), 100.0),
        (lambda lab: lab.set_rates([Rate.both(20.0)] * 2), 20.0),
        (lambda lab: lab.set_rates([Rate(up=50.0, down=None), Rate(up=None, down=20.0)]), 20.0),
        (lambda lab: set_pairs(lab, [[0.0, 40.0], [400.0, 0.0]]), 40.0),
    ],
    ids=["fast", "slow", "less one way", "of a pair"],
)
def test_a_link_carries_what_it_should_from_when_it_is_changed(lab, change, mbit):
    lab.set_rates([Rate.both(1000.0)] * 2)
    change(lab)
    # Of three tries: on busy cores a link carries less, and never more.
    carried = max(carried_mbit(lab, int(mbit * 1e6 / 8)) for _ in range(3))
    assert 0.75 * mbit < carried < 1.15 * mbit


@pytest.mark.long
@pytest.mark.integration
def test_what_a_crash_has_left_is_gone_with_the_next_down_and_its_processes_with_it(name):
    if reason := reason_for_none():
        pytest.skip(f"no lab here: {reason}")
    crashing = (
        "import os, subprocess\n"
        "from torchloom_core.demos.bandwidth import namespaces as lab\n"
        f"there = lab.Lab(2, {name!r})\n"
        "there.up()\n"
        "sleep = there.inside(0, ['sh', '-c', 'echo $$; exec sleep 600 > /dev/null'])\n"
        "subprocess.Popen(sleep, stderr=subprocess.DEVNULL)\n"
        "import time\n"
        "while not lab._run(['ip', 'netns', 'pids', there.namespace(0)]): time.sleep(0.01)\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    command = [sys.executable, "-c", crashing]
    crashed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert crashed.returncode == -signal.SIGKILL
    there = Lab(2, name)
    assert len(there.left()) == 3
    lab_module.main(["down", "--name", name])
    assert there.left() == []
    sleeper = Path("/proc", crashed.stdout.strip(), "cmdline")
    assert not sleeper.exists() or sleeper.read_bytes() == b""  # a zombie has none


@pytest.mark.long
@pytest.mark.integration
def test_two_ranks_train_in_the_lab_and_switch_the_link_under_way(lab, tmp_path):
    small = Settings(Workload(width=32, layers=1, context=16, batch=2), mark_s=1.0)
    schedule = steps((None, 20.0), (2.0, 2.0), 2)
    played = play_arm(lab, Arm("bf16", "bf16"), 1, schedule, small, tmp_path / "arm")
    assert len(played.began) == 2
    assert played.failed_steps() == 0
    assert len(played.steps()) >= 2
    assert {row["mode"] for row in played.steps()} == {"bf16"}
    assert {row["participants"] for row in played.steps()} == {2}
    assert all(row["bytes"] > 0 for row in played.steps())
    assert len(played.marks()) >= 2
    assert lab.left() == sorted([lab.hub, lab.namespace(0), lab.namespace(1)])


def test_where_there_can_be_no_lab_it_says_why_in_one_line_and_ends_with_3(monkeypatch, capsys):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/usr/sbin/{tool}")
    monkeypatch.setattr(namespaces.os, "geteuid", lambda: 1000)
    with pytest.raises(NoLabError, match="network namespaces need root"):
        Lab(2).up()
    with pytest.raises(SystemExit) as ended:
        lab_module.main(["up", "--ranks", "2"])
    assert ended.value.code == EXIT_NOT_HERE
    assert capsys.readouterr().err == "no lab here: network namespaces need root\n"


def test_without_iproute2_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None)
    assert reason_for_none() == "`ip` is missing: install iproute2"


def test_a_rate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="need a rate > 0 Mbit/s, was 0"):
        namespaces._shape("data", 0.0)


@pytest.mark.long
@pytest.mark.integration
def test_what_a_look_that_was_killed_has_left_is_ended_by_the_next(lab):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = f"{namespaces.PREFIX}-probe-{ended.pid}"
    subprocess.run(["ip", "netns", "add", left], check=True)
    assert reason_for_none() == ""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True)
    assert left not in listed.stdout
