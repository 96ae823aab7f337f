"""A standby Weaver takes over from one that is killed or frozen, and loses and repeats nothing."""

import asyncio
import json
import signal

import nats
import pytest

from tests.deadlines import DEADLINE_S
from tests.integration.conftest import until
from tests.nats_servers import nats_server
from tests.small_disk import fill, small_disk
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.wire import subjects

pytestmark = pytest.mark.integration

URL = []


@pytest.fixture
def start_standby(tmp_path, start_run):
    """Start Weavers with --standby, each in a folder of its own, on one server."""
    with nats_server(tmp_path / "nats") as (_, address):
        URL[:] = [f"nats://{address}"]

        def make():
            return start_run(f"[broker]\nurl = '{URL[0]}'\n[weaver]\nstate_dir = 'state'\n")

        def start():
            run = make()
            run.start_standby()
            return run

        start.make = make
        yield start


def ask(verb, **body):
    """Send a request to whichever Weaver leads, or raise TimeoutError."""

    async def request():
        client = await nats.connect(URL[0])
        subject = subjects.control("live", "operator", verb)
        try:
            return json.loads((await client.request(subject, json.dumps(body).encode())).data)
        finally:
            await client.close()

    return asyncio.run(request())


def leader_of(runs, epoch):
    """Wait for a leader of a later epoch; return it and that epoch."""
    now = until(lambda: (s := ask("status"))["epoch"] > epoch and s)
    pid = int(now["leader"].split()[1])
    return next(run for run in runs if run.weaver.pid == pid), now["epoch"]


def test_standbys_replace_a_killed_and_a_frozen_leader_with_its_commands_and_its_record(
    start_standby,
):
    runs = [start_standby() for _ in range(3)]
    first, epoch = leader_of(runs, 0)
    epochs = [epoch]
    trainer = first.start_light("g0")
    until(lambda: any(row["state"] == "training" for row in ask("status")["workers"]))
    until(lambda: len(ask("status")["standbys"]) == 2)
    trainer.process.send_signal(signal.SIGSTOP)  # its command waits while the leader is replaced
    assert ask("knob.set", knob="x", value=2.5)["ok"]
    first.kill_weaver()
    left = [run for run in runs if run is not first]
    second, epoch = leader_of(left, epoch)
    epochs.append(epoch)
    trainer.process.send_signal(signal.SIGCONT)
    until(lambda: trainer.journal("set"))

    second.weaver.send_signal(signal.SIGSTOP)
    third, epoch = leader_of([run for run in left if run is not second], epoch)
    epochs.append(epoch)
    second.weaver.send_signal(signal.SIGCONT)
    until(lambda: "standing by again" in second.weaver.errors.read_text())
    until(lambda: ask("knob.set", knob="x", value=5.0)["ok"])
    until(lambda: len(trainer.journal("set")) > 1)
    assert [row["value"] for row in trainer.journal("set")] == [2.5, 5.0]

    third.weaver.terminate()
    assert third.weaver.wait(DEADLINE_S) == 0
    last, _ = leader_of([second], epoch)
    *earlier, _ = read_epochs(run_folder(last.state, "live"))
    assert [record.meta.epoch for record in earlier] == epochs
    assert all(any(line.kind == "recovered" for line in record.lines()) for record in earlier)


@pytest.mark.long
def test_a_standby_on_a_full_disk_leaves_the_run_to_others_until_it_has_room(start_standby):
    first = start_standby()
    _, epoch = leader_of([first], 0)
    assert "no Weaver has led it before" in first.weaver.errors.read_text()
    run = start_standby.make()
    with small_disk(run.state, 8):
        run.start_standby()
        until(lambda: ask("status")["standbys"])
        full = fill(run.state / "full")
        first.kill_weaver()
        until(lambda: "going on standing by" in run.weaver.errors.read_text())
        first.start_standby()
        _, epoch = leader_of([first], epoch)
        full.unlink()
        first.kill_weaver()
        leader_of([run], epoch)
        run.kill_weaver()


def test_a_standby_needs_a_server_that_outlives_the_leader(start_run):
    refused = start_run("").torchloom("weaver", "--standby")
    assert refused.returncode == 2
    assert "--standby: need broker.url or broker.peers" in refused.stderr
