"""A cluster of one's own with a user and a password: it is used, and never printed."""

import json

import psutil
import pytest

from tests.integration.conftest import until
from tests.nats_servers import free_ports, nats_cluster

pytestmark = pytest.mark.integration

USERS = 'authorization { users: [{ user: me, password: "p@s,s" }] }\n'
SETTINGS = "[weaver]\nstate_dir = 'state'\ntick_s = 0.1\n[lighthouse]\nport = {}\nstatus_port = 0\n"


@pytest.fixture
def cluster(tmp_path):
    with nats_cluster(tmp_path, USERS) as (processes, addresses):
        yield processes, addresses


@pytest.mark.long
def test_a_run_survives_the_loss_of_a_server_and_nothing_shows_the_password(cluster, start_run):
    processes, addresses = cluster
    urls = ",".join(f"nats://me:p%40s%2Cs@{address}" for address in addresses)
    run = start_run(SETTINGS.format(*free_ports(1)), {"NATS_URL": urls})
    run.start_weaver()
    plain = ",".join(f"nats://{address}" for address in addresses)
    output = (run.folder / "weaver-1.out").read_text()
    assert f"is ready on {plain}" in output
    trainer = run.start_light("g0")
    until(lambda: "x" in run.torchloom("knob", "list").stdout)

    holder = most_used(addresses, processes)
    holder.kill()
    until(lambda: run.torchloom("knob", "set", "x", "2", "--yes").returncode == 0)
    until(lambda: [row["value"] for row in trainer.journal("set")])

    wrong = run.torchloom("status", "--url", urls.replace("p%40", "no-"))
    assert wrong.returncode == 3
    assert (
        "need credentials the server accepts, it refuses the user and password in the URL"
        in wrong.stderr
    )
    away = run.torchloom("status", "--url", f"nats://me:p%40s%2Cs@127.0.0.1:{free_ports(1)[0]}")
    assert away.returncode == 3
    assert "no NATS server can be reached" in away.stderr
    files = [*run.folder.glob("*.out"), *run.folder.glob("*.err")]
    files += [path for path in run.state.rglob("*") if path.is_file() and path.name != "join.json"]
    texts = [path.read_text(errors="replace") for path in files]
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(run.state) in line:
            texts.append(line)
    assert any("--url" in text for text in texts)  # the lighthouse's
    lighthouse = (run.state / "lighthouse" / "lighthouse.log").read_text()
    assert "not steered" not in lighthouse.partition("the connection lost")[0]
    for text in (*texts, wrong.stderr, away.stderr):
        assert "p%40s" not in text
        assert "p@s" not in text
    assert json.loads((run.state / "join.json").read_text())["url"] == urls


def most_used(addresses, processes):
    """Return the server with the most connections."""
    counts = []
    for address, process in zip(addresses, processes, strict=True):
        port = int(address.rpartition(":")[2])
        mine = psutil.Process(process.pid).net_connections("tcp")
        counts.append(sum(c.laddr.port == port and c.status == "ESTABLISHED" for c in mine))
    return processes[counts.index(max(counts))]
