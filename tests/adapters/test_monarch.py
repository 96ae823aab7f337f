"""Monarch's actors change, pause and save at one step, and their failures are reported."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.deadlines import DEADLINE_S
from tests.docs.attached import SCRIPTS, attached
from tests.integration.conftest import start_run, until  # noqa: F401 - the fixture
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.messages import Exit, Hello
from torchloom_core.wire.operations import Drain, SetKnob
from torchloom_threadlet.testing import AdapterContract

pytestmark = [needs("monarch"), pytest.mark.integration, pytest.mark.long]
NAME = "train_monarch.py"
JOURNAL = """
            import json, os, time
            time.sleep(float(os.environ.get("TEST_STEP_S", "0.02")))
            with open(self.path.with_name(f"{self.rank}.jsonl"), "a") as file:
                lr = optimizer.param_groups[0]["lr"]
                line = {"step": done, "lr": lr, "loss": loss.item().hex(), "pid": os.getpid()}
                print(json.dumps(line), file=file)
"""
CONFIG = "[weaver]\nstate_dir = 'state'\n[arbiter]\nmin_groups = 0"


class Job:
    def __init__(self, folder, script, *arguments, **environment):
        folder.mkdir()
        path = folder / NAME
        step = "            done += 1\n"
        assert script.count(step) == 1
        path.write_text(script.replace(step, step + JOURNAL))
        own = {"OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2"}
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, path, "--folder", folder, *map(str, arguments)],
                env=os.environ | own | environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        self.folder = folder

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def journal(self, rank):
        path = self.folder / f"{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def trains_at(self, rate, steps=20, but=None):
        """Wait until both train at a rate, in other processes than ``but``."""

        def is_so():
            assert self.process.poll() is None, self.log
            last = [self.journal(rank)[-steps:] for rank in (0, 1)]
            rates = [[line["lr"] for line in lines] for lines in last]
            return rates == [[rate] * steps] * 2 and last[1][0]["pid"] != but

        until(is_so)

    def end(self):
        if self.process.poll() is None:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                child.kill()
            self.process.kill()
        return self.process.wait()


@pytest.fixture
def start(tmp_path):
    jobs = []

    def job(name, *arguments, **environment):
        jobs.append(Job(tmp_path / name, *arguments, **environment))
        return jobs[-1]

    yield job
    for each in jobs:
        each.end()


class TestMonarch(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.monarch.adapter import MonarchAdapter

        return ranks_of(*(MonarchAdapter() for _ in range(count)))


def exits(run):
    return {body["worker"]: body for _, body in run.records("exit") if not body["expected"]}


def until_training(run, *workers):
    until(lambda: {(run.worker(name) or {}).get("state") for name in workers} == {"training"})


def test_actors_change_pause_save_and_outlive_a_kill(start_run, start):  # noqa: F811
    run = start_run(CONFIG)
    run.start_weaver()
    long = ("--steps", 1_000_000, "--save-every", 1_000_000)
    job = start("job", attached(NAME)[0], *long, TORCHLOOM_JOIN=str(run.state / "join.json"))
    job.trains_at(0.001)
    until_training(run, "g0-0", "g0-1")
    assert run.torchloom("knob", "set", "lr", "0.005").returncode == 0
    job.trains_at(0.005)
    first = [next(x["step"] for x in job.journal(rank) if x["lr"] == 0.005) for rank in (0, 1)]
    assert first[0] == first[1]

    assert run.torchloom("pause").returncode == 0
    until(lambda: {run.worker(f"g0-{rank}")["state"] for rank in (0, 1)} == {"paused"})
    assert len({len(job.journal(rank)) for rank in (0, 1)}) == 1
    assert run.torchloom("resume").returncode == 0
    job.trains_at(0.005, steps=40)

    saved = run.torchloom("checkpoint")
    assert saved.returncode == 0, saved.stdout + saved.stderr
    assert (job.folder / "state.pt").exists()
    killed = job.journal(1)[-1]
    psutil.Process(killed["pid"]).kill()
    job.trains_at(0.005, but=killed["pid"])  # the controller has started another mesh
    assert "a failure that no actor has handled" in job.log
    again = [x for x in job.journal(1) if x["pid"] == job.journal(1)[-1]["pid"]]
    assert 1 < again[0]["step"] <= killed["step"]
    until(lambda: exits(run).keys() == {"g0-0", "g0-1"})
    assert exits(run)["g0-1"]["status"] == -9
    assert exits(run)["g0-0"]["error"]

    left = run.torchloom("drain", "g0")
    assert left.returncode == 0, left.stdout + left.stderr
    until(lambda: job.process.poll() is not None)
    assert job.process.returncode == 0, job.log
    assert job.journal(0)[-1]["step"] == job.journal(1)[-1]["step"]
    assert len(run.records("exit")) == 4


def test_actors_that_train_alone_are_groups(start_run, start):  # noqa: F811
    run = start_run(CONFIG)
    run.start_weaver()
    script, _ = attached(NAME)
    for line, other in {
        '        dist.init_process_group("gloo")\n': "",
        "        dist.destroy_process_group()\n": "",
        "DDP(nn.Sequential(": "(nn.Sequential(",
        "attach(optimizer)": "attach(optimizer, alone=True)",
    }.items():
        assert script.count(line) == 1
        script = script.replace(line, other)
    join = str(run.state / "join.json")
    job = start("alone", script, "--steps", 1_000_000, TORCHLOOM_JOIN=join)
    job.trains_at(0.001)
    until_training(run, "trainer-0-0", "trainer-1-0")
    changed = run.torchloom("knob", "set", "lr", "0.005")
    assert changed.returncode == 0, changed.stdout + changed.stderr
    job.trains_at(0.005)


def test_without_a_weaver_losses_are_those_of_the_script_alone(start):
    options = ("--steps", 60)
    alone = start("alone", (SCRIPTS / NAME).read_text(), *options, TEST_STEP_S="0")
    assert alone.process.wait() == 0, alone.log
    with_loom = start("attached", attached(NAME)[0], *options, TEST_STEP_S="0")
    assert with_loom.process.wait() == 0, with_loom.log
    for rank in (0, 1):
        losses = [[x["loss"] for x in job.journal(rank)] for job in (alone, with_loom)]
        assert losses[0] == losses[1]
        assert len(losses[0]) == 60


def test_a_wrong_place_is_refused_in_one_line():
    from monarch.actor import endpoint

    from torchloom_threadlet.adapters.monarch import training

    with pytest.raises(ConfigError, match="write @training below @endpoint"):
        training(endpoint(lambda self: None))


@pytest.fixture
def actor(join_file, tmp_path, end_with_sidecars):
    own = {"TORCHLOOM_JOIN": str(join_file), "TORCHLOOM_HEARTBEAT_S": "0.2"}
    command = [sys.executable, Path(__file__).parent / "monarch_actor.py"]
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(command, env=os.environ | own, stdout=out, stderr=out)
    yield process
    end_with_sidecars(process)


async def enrolled(weaver, after=0):
    """Admit an incarnation after this one, once its knob is registered."""

    def found():
        return [
            event.incarnation
            for event in weaver.events
            if isinstance(event, Hello) and event.incarnation > after and "fails" in event.values
        ]

    return await weaver.admit(incarnation=(await weaver.until(found))[0])


async def test_an_endpoint_that_raises_is_a_fault_and_may_be_called_again(weaver, actor):
    first = await enrolled(weaver)
    ack = await weaver.ask(first, SetKnob(knob="fails", value=True))
    assert ack.status == "applied", ack
    end = await weaver.event(Exit)
    assert (end.expected, end.error) == (False, "RuntimeError: no more data")
    weaver.enrolment.release(first.worker)
    again = await enrolled(weaver, first.incarnation)
    assert again.pid == first.pid
    assert (await weaver.ask(again, Drain(), "c2")).status == "applied"
    assert await asyncio.to_thread(actor.wait, DEADLINE_S) == 0
