"""The embedded broker: start, adoption, supervision, and its errors."""

import asyncio
import contextlib
import errno
import json
import logging
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import until
from torchloom_core.config.loading import parse
from torchloom_core.config.services import Broker
from torchloom_core.floor.errors import BrokerError, StateError
from torchloom_core.live.transport import NatsBus, detached_process, jetstream
from torchloom_core.live.transport.broker import EmbeddedBroker, embedded, health
from torchloom_core.live.transport.broker.binary import find_server
from torchloom_core.live.weaver.startup import write_join_file
from torchloom_core.wire.messages import JoinFile

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def supervised(broker):
    """Keep the server up meanwhile."""
    supervision = asyncio.create_task(broker.supervise())
    try:
        yield
    finally:
        supervision.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervision


async def test_the_port_of_the_first_start_is_used_again(broker, tmp_path):
    port, pid = broker.port, broker.pid
    await broker.stop()
    assert not broker.is_alive()
    again = EmbeddedBroker(tmp_path / "state", "run")
    await again.start()
    assert (again.port, again.url) == (port, f"nats://127.0.0.1:{port}")
    assert again.pid != pid
    await again.stop()


async def test_a_running_server_is_adopted(broker, tmp_path):
    second = EmbeddedBroker(tmp_path / "state", "run")
    await second.start()
    assert (second.pid, second.url) == (broker.pid, broker.url)


async def test_two_weavers_that_start_at_once_share_one_server(tmp_path):
    brokers = [EmbeddedBroker(tmp_path / "state", "run") for _ in range(3)]
    await asyncio.gather(*(broker.start() for broker in brokers))
    assert len({broker.pid for broker in brokers}) == 1
    await brokers[0].stop()


async def test_a_foreign_process_with_the_recorded_pid_is_left_alone(broker, tmp_path):
    record_path = tmp_path / "state" / "broker" / "broker.json"
    await broker.stop()
    stranger = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=-1)
    record = json.loads(record_path.read_text())
    record_path.write_text(json.dumps({**record, "pid": stranger.pid}))
    again = EmbeddedBroker(tmp_path / "state", "run")
    await again.start()
    assert again.pid != stranger.pid
    assert stranger.returncode is None
    await stranger.communicate(b"\n")
    await again.stop()


async def test_a_server_with_another_configuration_is_restarted(broker, tmp_path):
    old = broker.pid
    other = EmbeddedBroker(tmp_path / "state", "another-run")
    await other.start()
    assert other.pid != old
    assert not broker.is_alive()
    await other.stop()


async def test_the_server_survives_the_kill_of_its_weaver(tmp_path):
    program = (
        "import asyncio, os, signal, pathlib\n"
        "from torchloom_core.live.transport.broker import EmbeddedBroker\n"
        f"broker = EmbeddedBroker(pathlib.Path({str(tmp_path / 'state')!r}), 'run')\n"
        "asyncio.run(broker.start())\n"
        "print(broker.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    weaver = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert weaver.returncode == -9, weaver.stderr
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    assert broker.pid == int(weaver.stdout)
    await broker.stop()


async def test_a_killed_server_is_restarted_on_its_port(broker, kill_broker, caplog, logged):
    caplog.set_level(logging.WARNING)
    pid, port = broker.pid, broker.port
    await kill_broker()
    async with supervised(broker):
        await logged.eventually(bool)
    assert broker.is_alive()
    assert broker.port == port
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        f"nats-server (pid {pid}) ended; restarted as pid {broker.pid} on port {port}"
    ]


async def test_a_server_is_restarted_once_there_are_descriptors_again(
    broker, kill_broker, caplog, logged, monkeypatch, tmp_path
):
    caplog.set_level(logging.WARNING)
    pid = broker.pid
    start_detached = embedded.start_detached

    def without_descriptors(*arguments):
        monkeypatch.setattr(embedded, "start_detached", start_detached)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(embedded, "start_detached", without_descriptors)
    await kill_broker()
    async with supervised(broker):
        await logged.eventually(lambda lines: len(lines) >= 2)
    assert [record.getMessage() for record in caplog.records] == [
        f"nats-server (pid {pid}) ended and cannot be restarted: {tmp_path / 'state' / 'broker'}: "
        "the nats-server cannot be started: Too many open files (1 so far)",
        f"nats-server (pid {pid}) ended; restarted as pid {broker.pid} on port {broker.port}",
    ]


async def test_a_server_whose_streams_refuse_writes_is_restarted(broker, caplog, monkeypatch):
    """As on a full disk: the server refuses all writes after the first that failed."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(embedded, "_HEALTH_S", 0.1)
    monkeypatch.setattr(jetstream, "_ANSWERED_S", 0.5)
    pid = broker.pid
    bus = await NatsBus.connect(broker.url, "run", broker.credentials.weaver_creds)
    await bus.state.claim_epoch()
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    storing = asyncio.create_task(bus.store({"plan.p1": b"x" * 8192}))
    try:
        async with supervised(broker), asyncio.timeout(DEADLINE_S):
            await storing
    finally:
        await bus.close()
    stuck = caplog.records[0].getMessage()
    assert stuck.startswith(f"nats-server (pid {pid}) refuses writes: ")
    assert "file too large" in stuck
    assert broker.pid != pid


@pytest.mark.long
async def test_a_server_that_hangs_is_restarted(broker, caplog, logged, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(embedded, "_HEALTH_S", 0.1)
    monkeypatch.setattr(embedded, "_STOP_PATIENCE_S", 0.1)
    monkeypatch.setattr(health, "_ANSWER_S", 0.1)
    pid = broker.pid
    os.kill(pid, signal.SIGSTOP)
    async with supervised(broker):
        await logged.eventually(lambda lines: any("restarted as" in line for line in lines))
    slow, ended = [record.getMessage() for record in caplog.records][:2]
    assert slow == f"nats-server (pid {pid}) is slow: no greeting in 0.1 s (1 so far)"
    hangs = f"nats-server \\(pid {pid}\\) hangs and is killed: it served no client at 1\\d checks"
    assert re.match(hangs, ended)
    assert broker.pid != pid


@pytest.mark.long
async def test_a_slow_server_is_not_ended_while_it_serves_others(
    broker, connect_person, monkeypatch
):
    """It uses no CPU time at most of the checks, and greets no client in time."""
    monkeypatch.setattr(health, "_ANSWER_S", 0.05)
    client = (await connect_person("alice")).client
    looks = health.Health(broker._server.store)
    for _ in range(4):
        os.kill(broker.pid, signal.SIGSTOP)
        for _ in range(10):
            assert not await asyncio.to_thread(
                looks.is_lost, broker.pid, broker.url, broker._running.monitor_url
            )
        os.kill(broker.pid, signal.SIGCONT)
        await client.flush(DEADLINE_S)


async def test_a_server_that_is_slow_to_greet_is_adopted(broker, tmp_path, monkeypatch):
    monkeypatch.setattr(health, "_ANSWER_S", 0.05)
    os.kill(broker.pid, signal.SIGSTOP)
    second = EmbeddedBroker(tmp_path / "state", "run")
    looks = []
    is_hung = second._health.is_hung

    def look(*place):
        looks.append(is_hung(*place))
        if len(looks) == 3:
            os.kill(broker.pid, signal.SIGCONT)
        return looks[-1]

    monkeypatch.setattr(second._health, "is_hung", look)
    await second.start()
    assert second.pid == broker.pid
    assert looks[:3] == [False] * 3


async def test_a_start_that_is_given_up_leaves_no_server(tmp_path):
    broker = EmbeddedBroker(tmp_path / "state", "run")
    starting = asyncio.create_task(broker.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert broker.is_alive()
    await broker.stop()
    assert not broker.is_alive()


async def test_a_ports_file_that_is_none_is_left_alone(tmp_path):
    odd = tmp_path / "state" / "broker" / "nats-server_odd.ports"
    odd.parent.mkdir(parents=True)
    odd.write_text("{}")
    broker = EmbeddedBroker(tmp_path / "state", "run")
    await broker.start()
    await broker.stop()
    assert odd.exists()


async def test_a_lock_that_cannot_be_had_is_one_clear_line(tmp_path):
    lock = tmp_path / "state" / "broker" / "lock"
    lock.mkdir(parents=True)
    with pytest.raises(StateError, match=r"lock: the nats-server cannot be started: Is a dir"):
        await EmbeddedBroker(tmp_path / "state", "run").start()


async def test_an_occupied_port_is_one_clear_line(tmp_path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        broker = EmbeddedBroker(tmp_path / "state", "run", Broker(port=port))
        with pytest.raises(BrokerError) as caught:
            await broker.start()
    assert str(caught.value) == (
        f"broker: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "set broker.port to another port, or to 0 for any free one"
    )


async def test_a_lost_port_is_one_clear_line(broker, tmp_path):
    await broker.stop()
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", broker.port))
        holder.listen()
        with pytest.raises(
            BrokerError, match=r"trainers use this port; free it, or delete .*broker"
        ):
            await EmbeddedBroker(tmp_path / "state", "run").start()


async def test_the_error_has_the_reason_of_a_server_that_ends_at_once(tmp_path):
    store = tmp_path / "state" / "broker" / "jetstream"
    store.parent.mkdir(parents=True)
    store.write_text("a file where a folder belongs")
    with pytest.raises(BrokerError, match="nats-server ended at once: "):
        await EmbeddedBroker(tmp_path / "state", "run").start()


async def test_a_state_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "state").write_text("a file")
    with pytest.raises(StateError) as caught:
        await EmbeddedBroker(tmp_path / "state", "run").start()
    assert str(caught.value) == (
        f"state folder {tmp_path / 'state' / 'broker'}: cannot be written: Not a directory"
    )


@pytest.mark.parametrize("name", ["lock", "startup.log", "nats.log"])
async def test_a_folder_in_the_place_of_a_file_is_one_clear_line(tmp_path, name):
    folder = tmp_path / "state" / "broker"
    (folder / name).mkdir(parents=True)
    with pytest.raises((StateError, BrokerError)) as caught:
        await EmbeddedBroker(tmp_path / "state", "run").start()
    assert "\n" not in str(caught.value)


async def test_a_ports_file_of_no_process_is_passed_over(broker, tmp_path):
    await broker.stop()
    for name in ("abc", "99999999999999999999999", "-1", "0"):
        (tmp_path / "state" / "broker" / f"nats-server_{name}.ports").write_text("{}")
    await broker.start()
    assert broker.is_alive()


async def test_damaged_keys_are_one_clear_line(broker, tmp_path):
    keys = tmp_path / "state" / "broker" / "keys" / "keys.json"
    keys.write_text("{}")
    with pytest.raises(StateError, match=r"keys\.json: the keys are damaged: "):
        await EmbeddedBroker(tmp_path / "state", "run").start()


def test_a_server_that_is_too_old_is_refused(tmp_path):
    old = tmp_path / "nats-server"
    old.write_text("#!/bin/sh\necho 'nats-server: v2.9.10'\n")
    old.chmod(old.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(BrokerError) as caught:
        find_server({"TORCHLOOM_NATS_SERVER": str(old)})
    assert str(caught.value) == f"{old}: need nats-server >= 2.11, was 2.9.10"


def test_a_named_server_that_is_missing_is_refused(tmp_path):
    with pytest.raises(BrokerError, match="TORCHLOOM_NATS_SERVER: need a program that can be run"):
        find_server({"TORCHLOOM_NATS_SERVER": str(tmp_path / "nothing")})


def test_something_else_than_a_server_is_refused():
    with pytest.raises(BrokerError, match=r"need nats-server >= 2\.11, was none"):
        find_server({"TORCHLOOM_NATS_SERVER": "/bin/true"})


def test_the_server_in_the_wheel_is_found():
    assert os.access(find_server({}), os.X_OK)


def ipv6_problem():
    """Return why this machine has no IPv6 loopback, or nothing."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        return f"no IPv6 loopback here: {error.strerror}"
    return ""


@pytest.mark.skipif(bool(ipv6_problem()), reason=ipv6_problem())
@pytest.mark.parametrize(("host", "reached_at"), [("::1", "[::1]"), ("::", "[::1]")])
async def test_a_server_on_an_ipv6_address_is_reached_adopted_and_handed_on(
    tmp_path, host, reached_at
):
    broker = EmbeddedBroker(tmp_path / "state", "run", Broker(host=host))
    await broker.start()
    try:
        assert broker.url == f"nats://{reached_at}:{broker.port}"
        again = EmbeddedBroker(tmp_path / "state", "run", Broker(host=host))
        await again.start()
        assert (again.pid, again.url) == (broker.pid, broker.url)
        bus = await NatsBus.connect(broker.url, "run", broker.credentials.weaver_creds)
        await bus.close()
        config = parse(f"[broker]\nhost = {host!r}")
        write_join_file(tmp_path, config, broker.url, broker, 0)
        join = msgspec.json.decode((tmp_path / "join.json").read_bytes(), type=JoinFile)
        name = socket.gethostname()
        assert join.url == (broker.url if host == "::1" else f"nats://{name}:{broker.port}")
        other = EmbeddedBroker(tmp_path / "other", "run", Broker(host="::1", port=broker.port))
        with pytest.raises(BrokerError, match=r"cannot listen on \[::1\]:\d+: Address already"):
            await other.start()
    finally:
        await broker.stop()


def test_a_process_that_ends_while_it_is_terminated_is_no_error(monkeypatch):
    child = subprocess.Popen(["sleep", "60"])

    def ends_once_seen(self):
        child.kill()
        child.wait()
        return ["argument"]

    monkeypatch.setattr(psutil.Process, "cmdline", ends_once_seen)
    detached_process.end(child.pid, "argument", 1.0)


def test_a_process_is_running_from_the_moment_it_was_started(monkeypatch):
    words = iter([[], [], ["program", "argument"]])
    monkeypatch.setattr(psutil.Process, "cmdline", lambda self: next(words))
    assert detached_process.is_running(os.getpid(), "argument")


def test_a_zombie_process_has_ended():
    careless = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", careless],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pid = int(parent.stdout.readline())
        detached_process.end(pid, "1000", 1000 * DEADLINE_S)
        # Its memory goes first, and its command line with it; it is a zombie a moment later.
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        parent.stdin.close()


def test_a_process_of_low_priority_leaves_the_processors_to_other_sessions(tmp_path):
    """Its nice value alone counts within its own session only, where nothing else runs."""
    pid = detached_process.start_detached(["/bin/sleep", "1000"], tmp_path / "out")
    try:
        detached_process.lower_priority(pid)
        assert psutil.Process(pid).nice() == 10
        group = Path(f"/proc/{pid}/autogroup")
        assert not group.exists() or group.read_text().endswith(" nice 10\n")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_that_cannot_be_looked_at_for_want_of_files_is_not_taken_for_running(monkeypatch):
    def no_more_files(pid):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(psutil, "Process", no_more_files)
    assert not detached_process.is_running(os.getpid(), sys.argv[0])


def test_a_process_that_does_not_terminate_is_killed():
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True)"
    command = [sys.executable, "-c", f"{deaf}; signal.pause()", "argument"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        detached_process.end(child.pid, "another", 0.1)
        before = detached_process.is_running(child.pid, "argument")
        detached_process.end(child.pid, "argument", 0.1)
        after = detached_process.is_running(child.pid, "argument")
        child.kill()
    assert (before, after) == (True, False)


@pytest.mark.long
async def test_a_client_that_is_slow_to_sign_in_is_not_cut_off(broker):
    """Of thousands that connect at once, most are."""
    host, port = broker.url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert (await reader.readline()).startswith(b"INFO")
    with pytest.raises(TimeoutError):  # the server's default is 2 s
        await asyncio.wait_for(reader.readline(), 3.0)
    writer.close()
    await writer.wait_closed()
