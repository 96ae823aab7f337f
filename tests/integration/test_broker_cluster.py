"""Three hosts, each with an embedded server, and one Weaver: any host may be lost."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from urllib.request import urlopen

import nats
import pytest

from tests.certificates import issued
from tests.integration.conftest import ANSWER_S, until
from tests.nats_servers import free_ports

pytestmark = pytest.mark.integration

TORCHLOOM = (sys.executable, "-m", "torchloom_core.cli")
CONFIG = """[weaver]
state_dir = '{state}'
tick_s = 0.1
[broker]
port = {port}
peers = [{peers}]
certificate = '{certificate}'
key = '{key}'
ca = '{ca}'
"""


class Host:
    """A host without a Weaver: ``torchloom broker run``."""

    def __init__(self, folder, config):
        self.state = folder / "state"
        self.config = folder / "torchloom.toml"
        self.config.write_text(f"[run]\nname = 'live'\n{config}")
        self.process = None

    def start(self):
        out, err = self.config.with_suffix(".out"), self.config.with_suffix(".err")
        command = [*TORCHLOOM, "broker", "run", "--config", self.config]
        with out.open("w") as stdout, err.open("w") as stderr:
            self.process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        until(lambda: "is ready" in out.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, err.read_text()

    def kill(self):
        """Lose the host."""
        if self.process:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(OSError, ProcessLookupError):
            os.kill(record_of(self.state)["pid"], signal.SIGKILL)


def record_of(state):
    return json.loads((state / "broker" / "broker.json").read_text())


@pytest.fixture
def hosts(start_run, tmp_path):
    """The Weaver's run, and two hosts beside it; the keys are on the first one."""
    files = issued(tmp_path / "tls")[1]._asdict()
    ports = free_ports(3)
    peers = ", ".join(f"'127.0.0.1:{port}'" for port in ports)
    run = start_run(CONFIG.format(state="state", port=ports[0], peers=peers, **files))
    others = []
    for number, port in enumerate(ports[1:]):
        folder = tmp_path / f"host{number}"
        folder.mkdir()
        config = CONFIG.format(state=folder / "state", port=port, peers=peers, **files)
        others.append(Host(folder, config))
    yield run, others
    for host in others:
        host.kill()


@pytest.mark.long
def test_a_run_survives_the_loss_of_the_host_that_leads_its_streams(hosts, tmp_path):
    run, others = hosts
    refused = run.torchloom("weaver")
    assert refused.returncode == 3
    assert "[broker] peers: need the keys that all of these hosts share" in refused.stderr
    assert refused.stderr.count("\n") == 1
    told = run.torchloom("broker", "keys").stdout
    keys = run.state / "broker" / "keys"
    assert f"copy {keys} to the same place" in told
    for host in others:
        shutil.copytree(keys, host.state / "broker" / "keys")
        host.start()
    run.start_weaver()
    trainer = run.start_light("g0")
    until(lambda: run.torchloom("knob", "set", "x", "2", "--yes").returncode == 0)
    until(lambda: [row["value"] for row in trainer.journal("set")] == [2])

    creds = run.torchloom("credentials", "create", "bob", "--out", str(run.state / "bob.creds"))
    assert creds.returncode == 0, creds.stderr
    assert run.torchloom("credentials", "revoke", "bob").returncode == 0
    bob = "status", "--creds", str(run.state / "bob.creds")
    refused = until(lambda: (answer := run.torchloom(*bob)).returncode and answer)
    assert "need credentials the server accepts" in refused.stderr
    assert refused.stderr.count("\n") == 1
    places = [record_of(host.state)["port"] for host in others]
    ca = next(tmp_path.rglob("ca.pem"))
    until(lambda: not any(admits(port, ca, run.state / "bob.creds") for port in places))
    assert all(admits(port, ca, keys / "operator.creds") for port in places)

    streams = streams_of(run.state)
    assert {(name, count) for name, _, count in streams} >= {("TL_REPORT_live", 3)}
    assert {count for *_, count in streams} == {3}
    leader = next(leader for name, leader, _ in streams if name == "TL_REPORT_live")
    places = {record_of(host.state)["port"]: host for host in others}
    lost = places.get(int(leader.rpartition("-")[2]))
    if lost is not None:
        lost.kill()
    else:
        os.kill(run.broker["pid"], signal.SIGKILL)
    until(lambda: run.torchloom("knob", "set", "x", "3", "--yes").returncode == 0)
    until(lambda: [row["value"] for row in trainer.journal("set")] == [2, 3])
    assert run.weaver.poll() is None


def admits(port, ca, creds):
    """Return whether a server accepts credentials."""

    async def connect():
        context = ssl.create_default_context(cafile=ca)
        client = await nats.connect(
            f"tls://127.0.0.1:{port}",
            tls=context,
            user_credentials=str(creds),
            allow_reconnect=False,
        )
        await client.close()

    try:
        asyncio.run(asyncio.wait_for(connect(), ANSWER_S))
    except (nats.errors.Error, ConnectionError, TimeoutError):
        return False
    return True


def streams_of(state):
    """Return name, leader and copies of each stream, by a server's monitoring port."""
    url = f"{record_of(state)['monitor_url']}/jsz?accounts=1&streams=1&config=1"
    with urlopen(url) as answer:
        accounts = json.load(answer)["account_details"]
    return [
        (one["name"], one["cluster"]["leader"], one["config"]["num_replicas"])
        for account in accounts
        for one in account.get("stream_detail", [])
    ]
