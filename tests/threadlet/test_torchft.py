"""A real torchft quorum: a standby joins, the group at risk drains, and no step fails."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits
from torchft.coordination import LighthouseServer

from tests.deadlines import DEADLINE_S
from tests.docs.attached import attached
from tests.preloaded import Preloaded
from tests.threadlet.bare_manager import BareManager
from torchloom_core.wire.messages import Exit, Hello, Note
from torchloom_core.wire.operations import (
    Checkpoint,
    Drain,
    FencedChange,
    Join,
    Prepare,
    SetKnob,
    SetKnobs,
)
from torchloom_threadlet.demo_trainer import build, digits
from torchloom_threadlet.torchft import attach

pytestmark = pytest.mark.integration
STEPS = 100_000  # more than any test reaches
QUIET = {"RUST_LOG": "error", "OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}


class Group:
    """One replica group, running the digits trainer."""

    def __init__(self, folder, name, lighthouse, peer_timeout_s, environment):
        self._folder = folder
        self._name = name
        arguments = ["--steps", STEPS, "--lighthouse", lighthouse, "--group", name]
        arguments += ["--peer-timeout-s", peer_timeout_s]
        for option, ending in (("log", "jsonl"), ("result", "json"), ("checkpoint", "pt")):
            arguments += [f"--{option}", folder / f"{name}.{ending}"]
        with (folder / f"{name}.err").open("w") as errors:
            self.process = Preloaded(
                ["-m", "torchloom_threadlet.demo_trainer", *arguments],
                env=os.environ | QUIET | environment,
                stderr=errors,
            )

    @property
    def result(self):
        return json.loads((self._folder / f"{self._name}.json").read_text())

    @property
    def steps(self):
        lines = (self._folder / f"{self._name}.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if "committed" in line]

    @property
    def errors(self):
        return (self._folder / f"{self._name}.err").read_text()

    @property
    def saved(self):
        return (self._folder / f"{self._name}.pt").exists()


@pytest.fixture
def lighthouse():
    server = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=10_000,
        quorum_tick_ms=100,
        heartbeat_timeout_ms=5000,  # torchft's default: busy cores may delay all groups
    )
    yield server.address()
    server.shutdown()


@pytest.fixture
def start_group(tmp_path, join_file, lighthouse, end_with_sidecars):
    groups = []

    def start(name, peer_timeout_s=5.0, **environment):
        environment = {"TORCHLOOM_JOIN": str(join_file)} | environment
        groups.append(Group(tmp_path, name, lighthouse, peer_timeout_s, environment))
        return groups[-1]

    yield start
    for group in groups:
        end_with_sidecars(group.process)


@pytest.fixture
def start_torchrun(tmp_path, join_file, lighthouse, end_with_sidecars):
    processes = []

    def start(name, script, ranks=1):
        (tmp_path / name).write_text(script)
        own = {"TORCHLOOM_JOIN": str(join_file), "TORCHFT_LIGHTHOUSE": lighthouse}
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        torchrun += ["--nproc-per-node", str(ranks), "--max-restarts", "3"]
        command = [*torchrun, tmp_path / name]
        printed = tmp_path / f"{name}.out"
        with printed.open("w") as out:
            environment = os.environ | QUIET | own
            processes.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=out)
            )
        return processes[-1], printed

    yield start
    for process in processes:
        end_with_sidecars(process)


async def end_run(weaver, *hellos):
    """End the run of all of them at one step, and return that step."""
    for hello in hellos:
        last = FencedChange(number=9, do=SetKnobs(values={"steps": 1}))
        await weaver.send(hello, last, f"end-{hello.worker}")
    ends = [await weaver.final(f"end-{hello.worker}") for hello in hellos]
    assert {ack.status for ack in ends} == {"applied"}
    (step,) = {ack.step for ack in ends}
    return step


async def test_a_group_migrates_to_a_standby_without_a_failed_step(weaver, start_group):
    started = [start_group(name, DEADLINE_S) for name in ("g0", "g1")]
    standby = start_group("g2", DEADLINE_S, TORCHLOOM_ROLE="standby")
    hellos = {name: await weaver.admit(f"{name}-0") for name in ("g0", "g1", "g2")}
    assert hellos["g2"].state == "standby"
    for name in ("g0", "g1"):
        await weaver.beat(lambda batch: batch.state == "training", f"{name}-0")

    moved_s = time.time()  # how they formed the quorum is not tested
    assert (await weaver.ask(hellos["g2"], Join(), "join")).status == "applied"
    joined = await weaver.beat(lambda batch: batch.state == "training", "g2-0")
    # A Weaver that has just started learns the quorums only from the roll call.
    before = len(weaver.events)
    await weaver.send_roll_call()
    again = await weaver.until(
        lambda: [e for e in weaver.events[before:] if isinstance(e, Hello) and e.group == "g1"]
    )
    assert again[-1].replica_id.startswith("g1:")
    assert again[-1].quorum_id > hellos["g1"].quorum_id

    assert (await weaver.ask(hellos["g0"], Drain(), "drain")).status == "applied"
    await weaver.beat(lambda batch: batch.step > joined.step, "g1-0")

    assert (await weaver.ask(hellos["g1"], Checkpoint(), "save")).status == "applied"
    assert started[1].saved
    ended = await end_run(weaver, hellos["g1"], hellos["g2"])
    for name in ("g0", "g1", "g2"):
        end = await weaver.event(Exit, f"{name}-0")
        assert (end.status, end.expected) == (0, True)

    drained, survivor, joiner = started[0].result, started[1].result, standby.result
    assert drained["drained"]
    assert (survivor["step"], joiner["step"]) == (ended, ended)
    assert survivor["weights"] == joiner["weights"]
    since = [[line for line in group.steps if line["t"] > moved_s] for group in started]
    for group, lines in zip((*started, standby), (*since, standby.steps), strict=True):
        assert all(line["committed"] for line in lines), group.errors
    counted = [line["step"] for line in since[1]]
    assert counted == list(range(counted[0], ended + 1))
    assert {"participants", "quorum_id", "failed_steps_total", "loss", "step_time_s"} <= {
        name for batch in weaver.telemetry for name in batch.metrics
    }
    quorums = [e for e in weaver.events if isinstance(e, Note) and e.kind == "quorum"]
    assert {note.worker for note in quorums} == {"g0-0", "g1-0", "g2-0"}


async def prepared(weaver, name):
    """Prepare a standby, and return its hello once its Manager is made."""
    hello = await weaver.admit(f"{name}-0")
    assert "prepare" in hello.actuators
    assert (await weaver.ask(hello, Prepare(), f"prepare-{name}")).status == "applied"
    # The learning rate is registered once the Manager exists.
    made = await weaver.until(
        lambda: [
            e
            for e in weaver.events
            if isinstance(e, Hello) and e.group == name and any(k.name == "lr" for k in e.knobs)
        ]
    )
    assert made[0].state == "standby"
    assert "prepared" in made[0].actuators
    return made[0]


@pytest.mark.long
async def test_a_group_that_gives_its_state_reports_the_size(weaver, start_group):
    for name in ("g0", "g1"):
        start_group(name)
        await weaver.admit(f"{name}-0")
        await weaver.beat(lambda batch: batch.step > 1, f"{name}-0")
    given = await weaver.beat(lambda batch: "state_bytes" in batch.metrics)
    row = np.frombuffer(given.values, "<f8").reshape(-1, len(given.metrics))[-1]
    weights = sum(parameter.nbytes for parameter in build(seed=0).parameters())
    assert row[given.metrics.index("state_bytes")] == 2 * weights  # and as much momentum
    assert all("state_bytes" not in b.metrics for b in weaver.telemetry if b.worker == "g1-0")


@pytest.mark.long
async def test_a_prepared_standby_waits_with_its_manager_until_it_joins(weaver, start_group):
    started, standby = start_group("g0"), start_group("g1", TORCHLOOM_ROLE="standby")
    trains = await weaver.admit("g0-0")
    hello = await prepared(weaver, "g1")
    again = await weaver.ask(hello, Prepare(), "again")
    assert again.detail == "need a standby that waits in attach(held=True)"
    alone = await weaver.ask(hello, SetKnob(knob="lr", value=0.01), "set")
    assert alone.detail == "knob lr is run-fenced: it cannot be changed on one worker alone"
    assert (await weaver.ask(hello, Join(), "join")).status == "applied"
    await weaver.beat(lambda batch: batch.state == "training", "g1-0")
    await end_run(weaver, trains, hello)
    for name in ("g0", "g1"):
        assert (await weaver.event(Exit, f"{name}-0")).status == 0
    assert [group.result["failed_steps"] for group in (started, standby)] == [0, 0]
    assert started.result["weights"] == standby.result["weights"]
    assert "others may wait" not in standby.errors


@pytest.mark.long
async def test_a_standby_dismissed_after_it_prepared_shuts_its_manager_down(weaver, start_group):
    standby = start_group("g1", TORCHLOOM_ROLE="standby")
    hello = await prepared(weaver, "g1")
    assert (await weaver.ask(hello, Drain(), "drain")).status == "applied"
    end = await weaver.event(Exit, "g1-0")
    assert (end.status, end.expected) == (0, True)
    assert "standby g1-0 is dismissed: exiting with status 0\n" in standby.errors


async def test_the_learning_rate_is_a_knob_through_the_wrapper(weaver, start_group):
    start_group("g0")
    hello = await weaver.admit()
    await weaver.beat(lambda batch: batch.state == "training")
    set_lr = FencedChange(number=1, do=SetKnobs(values={"lr": 0.01}))
    applied = await weaver.ask(hello, set_lr)
    assert (applied.status, applied.detail) == ("applied", "")
    negative = FencedChange(number=2, do=SetKnobs(values={"lr": -1.0}))
    assert "need at least 0" in (await weaver.ask(hello, negative, "negative")).detail
    alone = SetKnob(knob="lr", value=0.02)
    assert "on one worker alone" in (await weaver.ask(hello, alone, "alone")).detail
    await weaver.until(
        lambda: {getattr(event, "values", {}).get("lr") for event in weaver.events} >= {0.05, 0.01}
    )


@pytest.mark.long
@pytest.mark.parametrize("name", ["train_ddp.py", "train_diloco.py"])
async def test_a_drained_script_of_nested_loops_ends_and_torchrun_counts_it_as_done(
    weaver, start_torchrun, name
):
    script, _ = attached(name)
    torchrun, printed = start_torchrun(name, script)
    hello = await weaver.admit()
    await weaver.beat(lambda batch: batch.step > 0)
    assert (await weaver.ask(hello, Drain())).status == "applied"
    end = await weaver.event(Exit)
    assert (end.status, end.expected) == (0, True)
    assert await asyncio.to_thread(torchrun.wait, DEADLINE_S) == 0
    line = "g0-0 was drained but its loop continues: exiting with status 0"
    assert printed.read_text().count(line) == 1
    incarnations = {event.incarnation for event in weaver.events if isinstance(event, Hello)}
    assert incarnations == {hello.incarnation}


@pytest.mark.long
@pytest.mark.parametrize("name", ["train_hsdp.py", "train_torchrun.py"])
async def test_a_script_of_two_ranks_changes_and_leaves_at_one_step(weaver, start_torchrun, name):
    script, _ = attached(name)
    torchrun, _ = start_torchrun(name, script, ranks=2)
    hellos = [await weaver.admit(f"g0-{rank}") for rank in range(2)]
    for number, do in enumerate((SetKnobs(values={"lr": 0.002}), Drain()), 1):
        for hello in hellos:
            await weaver.beat(lambda batch: batch.step > 0, hello.worker)
            operation = FencedChange(number=number, do=do)
            await weaver.send(hello, operation, f"c{number}-{hello.rank}")
        acks = [await weaver.final(f"c{number}-{hello.rank}") for hello in hellos]
        assert [ack.status for ack in acks] == ["applied"] * 2
        assert len({ack.step for ack in acks}) == 1
    for hello in hellos:
        assert (await weaver.event(Exit, hello.worker)).expected
    assert await asyncio.to_thread(torchrun.wait, DEADLINE_S) == 0


def test_the_demo_trains_on_scikit_learns_digits():
    wanted = load_digits()
    images, labels = digits()
    assert np.array_equal(images.numpy(), wanted.data.astype(np.float32) / 16)
    assert np.array_equal(labels.numpy(), wanted.target)


def test_torchfts_records_are_captured_and_no_more_of_them_printed(tmp_path, monkeypatch):
    class Manager(BareManager):
        def shutdown(self):
            raise AssertionError("there was no drain")

    monkeypatch.chdir(tmp_path)
    printed = []
    handler = logging.Handler()
    handler.emit = printed.append
    loom = attach()
    logging.getLogger().addHandler(handler)
    try:
        commits = logging.getLogger("torchft_commits")
        listeners = len(commits.filters)
        for _ in range(2):
            loom.manage(Manager())
        assert len(commits.filters) == listeners + 1
        for committed in (True, False, False):
            commits.info("", extra={"commit_result": committed, "step": 1, "quorum_id": 2})
        commits.warning("worth reading", extra={"commit_result": True})
    finally:
        logging.getLogger().removeHandler(handler)
    assert loom.adapter._failed_steps == 2
    logged = [r.getMessage() for r in printed if r.name.startswith("torchft")]
    assert logged == ["worth reading"]


def test_a_trainers_metric_precedes_the_adapters_of_the_same_name(tmp_path, monkeypatch):
    class Manager(BareManager):
        def current_step(self):
            return 1

        def num_participants(self):
            return 2

    monkeypatch.chdir(tmp_path)
    loom = attach()
    loom.manage(Manager())
    assert loom.step(wait_s=7.0, participants=9)
    ((_, row),) = loom._worker.samples.take(0)
    assert (row["wait_s"], row["participants"], row["quorum_id"]) == (7.0, 9.0, -1.0)


@pytest.mark.parametrize(("replica_id", "warnings"), [("g0:8c1f", 0), ("train_ddp_0:8c1f", 1)])
def test_a_standbys_manager_with_another_name_is_warned_of(
    tmp_path, monkeypatch, caplog, replica_id, warnings
):
    class Manager(BareManager):
        _replica_id = replica_id

    monkeypatch.chdir(tmp_path)
    loom = attach(held=True)
    loom._worker.state = "standby"
    loom._worker.close()  # no Weaver lets it join
    loom.manage(Manager())
    logged = [record.getMessage() for record in caplog.records if "replica_id" in record.msg]
    line = "others may wait for standby g0-0: its Manager needs replica_id 'g0', was 'train_ddp_0'"
    assert logged == [line] * warnings
