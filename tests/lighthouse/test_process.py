"""A lighthouse as a process: started, killed, started again, taken over, and looked at."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
from torchft._torchft import LighthouseClient

from experiments.lighthouse.calls import Calls
from tests.waiting import soon, until

pytestmark = pytest.mark.integration


class Process:
    """``torchloom lighthouse`` with its output in files."""

    def __init__(self, folder, number, *options, out=None):
        self._out = Path(out or folder / f"{number}.out")
        self._err = folder / f"{number}.err"
        command = [sys.executable, "-m", "torchloom_core.cli", "lighthouse", "--min_replicas", "1"]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen([*command, *options], stdout=out, stderr=err)

    def ready(self):
        until(lambda: "is ready" in self._out.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output
        return self

    @property
    def output(self):
        return self._err.read_text()

    @property
    def page(self):
        """Host and port."""
        return self._out.read_text().rpartition("http://")[2].partition("/")[0]

    def get(self, path, **headers):
        with closing(HTTPConnection(self.page)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("content-type"), answer.read().decode()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait()

    def fails(self):
        """Return the one line with which it ends."""
        assert self.process.wait() not in (0, None)
        (line,) = self.output.splitlines()
        return line


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def start(tmp_path, port):
    started = []

    def start(*options, bind=True, out=None):
        own = ["--bind", f"127.0.0.1:{port}", "--status_bind", "127.0.0.1:0"] if bind else []
        started.append(Process(tmp_path, len(started), *own, *options, out=out))
        return started[-1]

    yield start
    for process in started:
        process.end(signal.SIGKILL)


@pytest.fixture
def ask(port):
    def ask(*replica_ids, **fields):
        """Return the answer to the last, with all asking at once."""

        async def ask():
            calls = [Calls(f"127.0.0.1:{port}") for _ in replica_ids]
            calls_made = [c.request(r, **fields) for c, r in zip(calls, replica_ids, strict=True)]
            answers = [await soon(call) for call in calls_made]
            for call in calls:
                await call.close()
            return answers[-1]

        return asyncio.run(ask())

    return ask


@pytest.mark.long
def test_torchfts_own_client_is_served_as_by_its_own_lighthouse(start, port):
    start().ready()
    client = LighthouseClient(f"http://127.0.0.1:{port}", timedelta(seconds=30))
    client.heartbeat("a:1", timedelta(seconds=30))
    quorum = client.quorum("a:1", timedelta(seconds=30), step=3, data={"my": 1})
    assert [(m.replica_id, m.step, m.data) for m in quorum.participants] == [("a:1", 3, {"my": 1})]


@pytest.mark.long
def test_after_a_kill_and_restart_it_continues_with_its_ids(start, ask, tmp_path):
    state = ("--state", str(tmp_path / "state.json"))
    first = start(*state).ready()
    quorum_id = ask("a:1", "b:1").quorum_id
    first.end(signal.SIGKILL)
    again = start(*state).ready()
    assert ask("a:1", "b:1", step=1).quorum_id == quorum_id
    assert ask("a:1", "b:1", step=2, commit_failures=1).quorum_id > quorum_id
    assert again.end() == 0


@pytest.mark.long
def test_killed_with_its_state_lost_it_uses_no_id_again(start, ask):
    first = start().ready()
    quorum_id = ask("a:1").quorum_id
    first.end(signal.SIGKILL)
    start().ready()
    assert ask("a:1").quorum_id > quorum_id


@pytest.mark.long
def test_a_standby_takes_over_with_the_state_at_the_address(start, ask, tmp_path):
    state = ("--state", str(tmp_path / "state.json"))
    first = start(*state).ready()
    quorum_id = ask("a:1", "b:1").quorum_id
    standby = start(*state, "--standby")
    until(lambda: "standby: waiting for" in standby.output)
    first.end(signal.SIGKILL)
    standby.ready()
    assert ask("a:1", "b:1", step=1).quorum_id == quorum_id


@pytest.mark.long
def test_a_standby_that_is_not_needed_any_more_ends_in_peace(start, tmp_path):
    state = ("--state", str(tmp_path / "state.json"))
    start(*state).ready()
    standby = start(*state, "--standby")
    until(lambda: "standby: waiting for" in standby.output)
    assert standby.end() == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_at_a_signal_it_ends_and_saves_the_members(start, ask, tmp_path, number):
    path = tmp_path / "state.json"
    process = start("--state", str(path)).ready()
    quorum_id = ask("a:1", "b:1").quorum_id
    assert process.end(number) == 0
    assert json.loads(path.read_text())["kept"]["quorum_id"] == quorum_id
    assert json.loads(path.read_text())["kept"]["members"] == ["a:1", "b:1"]
    assert "Traceback" not in process.output


@pytest.mark.long
def test_a_lighthouse_serves_although_its_output_is_not_read(start, ask):
    full = start(out="/dev/full")
    until(lambda: "standard output cannot be written: No space left" in full.output)
    assert ask("a:1").replicas == ("a:1",)
    assert full.end() == 0


@pytest.mark.long
def test_an_occupied_port_is_one_line(start, port):
    start().ready()
    line = start("--status_bind", "", "--bind", f"127.0.0.1:{port}", bind=False).fails()
    assert f"--bind: cannot listen on 127.0.0.1:{port}: Address already in use" in line


@pytest.mark.long
def test_an_occupied_port_of_the_page_is_one_warning_and_it_serves(start, port):
    page = start().ready().page
    other = start("--bind", "127.0.0.1:0", "--status_bind", page, bind=False).ready()
    (line,) = other.output.splitlines()
    assert f"--status_bind: cannot listen on {page}: Address already in use" in line
    assert other.get("/health") == (200, "text/plain; charset=utf-8", "ok\n")


@pytest.mark.long
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_managers_and_http_probes_share_the_main_port(start, host):
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this host has no IPv6")
    options = ("--bind", f"{host}:0", "--status_bind", "")
    lighthouse = start(*options, bind=False).ready()
    where = lighthouse.page.strip()
    assert where.startswith(f"{host}:")
    client = LighthouseClient(f"http://{where}", timedelta(seconds=30))
    for step in range(2):
        quorum = client.quorum("a:1", timedelta(seconds=30), step=step)
        assert [member.step for member in quorum.participants] == [step]
        for path in ("/", "/status", "/health"):
            assert lighthouse.get(path)[0] == 200
    assert json.loads(lighthouse.get("/status")[2])["groups"][0]["replica_id"] == "a:1"


@pytest.mark.long
def test_a_connection_that_is_over_leaves_no_descriptor_behind(start, port):
    lighthouse = start().ready()
    descriptors = Path(f"/proc/{lighthouse.process.pid}/fd")
    where = f"http://127.0.0.1:{port}"
    for _ in range(3):  # one-time resources exist by then
        assert urlopen(f"{where}/health").read() == b"ok\n"
    before = len(list(descriptors.iterdir()))
    for _ in range(20):
        assert urlopen(f"{where}/health").read() == b"ok\n"
        with closing(HTTPConnection(f"127.0.0.1:{port}")) as keep_alive:
            keep_alive.request("GET", "/health")
            assert keep_alive.getresponse().read() == b"ok\n"
        client = LighthouseClient(where, timedelta(seconds=30))
        client.heartbeat("a:1", timedelta(seconds=30))
        del client
    until(lambda: len(list(descriptors.iterdir())) <= before + 3)


@pytest.mark.long
def test_idle_or_invalid_connections_block_no_others(start, port):
    lighthouse = start().ready()
    address = ("127.0.0.1", port)
    silent = [socket.create_connection(address) for _ in range(600)]
    try:
        silent[-1].sendall(b"PRI * HTT")
        with socket.create_connection(address) as rubbish:
            rubbish.sendall(b"\x16\x03\x01 neither one nor the other\r\n\r\n")
            assert rubbish.recv(100).startswith(b"HTTP/1.1 400")
        client = LighthouseClient(f"http://127.0.0.1:{port}", timedelta(seconds=30))
        client.heartbeat("a:1", timedelta(seconds=30))
        assert silent[0].recv(1) == b""  # the oldest of too many is closed
    finally:
        for one in silent:
            one.close()
    assert lighthouse.output == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--bind", "nowhere"], "--bind: need host:port, such as [::]:29510, was 'nowhere'"),
        (["--bind", "127.0.0.1:0", "--heartbeat_hold_ms", "4000"], "need at most half"),
        (["--bind", "127.0.0.1:0", "--state", "/proc/no/state"], "/proc/no/state: cannot be"),
    ],
)
def test_invalid_options_are_one_line(start, options, error):
    assert error in start("--status_bind", "", *options, bind=False).fails()


def test_its_page_shows_the_members_and_the_groups_it_waits_for(start, ask, port):
    lighthouse = start().ready()
    quorum_id = ask("a<b>:1", "b:1", step=5).quorum_id

    status, kind, body = lighthouse.get("/status")
    assert (status, kind) == (200, "application/json")
    seen = json.loads(body)
    assert seen["quorum_id"] == quorum_id
    assert [(g["replica_id"], g["state"], g["step"]) for g in seen["groups"]] == [
        ("a<b>:1", "member", 5),
        ("b:1", "member", 5),
    ]
    status, kind, body = lighthouse.get("/status", accept="text/html")
    assert status == 200
    assert "a&lt;b&gt;:1" in body
    assert "<b>:1" not in body
    _, _, body = lighthouse.get("/metrics")
    metrics = dict(line.split() for line in body.splitlines() if not line.startswith("#"))
    assert float(metrics["torchloom_lighthouse_quorum_id"]) == quorum_id
    assert float(metrics["torchloom_lighthouse_members"]) == 2
    assert lighthouse.get("/healthz")[0] == 200
    assert lighthouse.get("/replica/b:1/kill")[0] == 404


@pytest.mark.long
def test_without_a_page_nothing_listens_for_one(start):
    lighthouse = start("--bind", "127.0.0.1:0", "--status_bind", "", bind=False).ready()
    assert lighthouse.page.startswith("127.0.0.1")
    assert "page" not in lighthouse._out.read_text()
