"""Ray's workers change and save at one step, and get their knobs again after a restart."""

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
from torchloom_threadlet.testing import AdapterContract

pytestmark = [needs("ray"), pytest.mark.integration, pytest.mark.long]
NAME = "train_ray.py"
JOURNAL = """
        import os, time
        time.sleep(config["step_s"])
        with open(f"{config['journal']}/{rank}.jsonl", "a") as file:
            lr = optimizer.param_groups[0]["lr"]
            line = {"step": done, "lr": lr, "loss": loss.item().hex(), "pid": os.getpid()}
            print(json.dumps(line), file=file)
"""


class Job:
    def __init__(self, folder, script, **environment):
        config = {"journal": str(folder), "step_s": 0.02, "steps": 100_000, "save_every": 50}
        config |= environment.pop("config", {})
        path = folder / NAME
        path.write_text(script.replace("        done += 1\n", "        done += 1\n" + JOURNAL))
        own = {"OMP_NUM_THREADS": "1", "TORCHLOOM_HEARTBEAT_S": "0.2", "RAY_ADDRESS": "local"}
        own |= {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300", "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, path, "--storage", folder / "storage"]
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [*command, "--config", json.dumps(config)],
                env=os.environ | own | environment,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        self.folder = folder

    def journal(self, rank):
        path = self.folder / f"{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def checkpoints(self):
        """Return the steps of the checkpoints that Ray would resume from."""
        paths = (self.folder / "storage").rglob("checkpoint_manager_snapshot.json")
        found = [json.loads(path.read_text())["checkpoint_results"] for path in paths]
        return [one["metrics"]["step"] for results in found for one in results]

    def trains_at(self, rate, steps=20):
        def is_so():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            last = [[line["lr"] for line in self.journal(rank)[-steps:]] for rank in (0, 1)]
            return all(rates == [rate] * steps for rates in last)

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

    def job(name, script, **environment):
        (tmp_path / name).mkdir()
        jobs.append(Job(tmp_path / name, script, **environment))
        return jobs[-1]

    yield job
    for each in jobs:
        each.end()


class TestRay(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.ray.adapter import RayAdapter

        return ranks_of(*(RayAdapter() for _ in range(count)))


def test_workers_change_pause_save_and_get_their_rate_again_after_a_kill(start_run, start):  # noqa: F811
    run = start_run("[weaver]\nstate_dir = 'state'\n[arbiter]\nmin_groups = 0")
    run.start_weaver()
    join = str(run.state / "join.json")
    seldom = {"save_every": 1_000_000}
    job = start("attached", attached(NAME)[0], TORCHLOOM_JOIN=join, config=seldom)
    job.trains_at(0.001)
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
    (step,) = until(job.checkpoints)  # the only one: Ray's controller has taken it in
    lines = job.journal(1)
    psutil.Process(lines[-1]["pid"]).kill()
    until(lambda: job.journal(1)[-1]["pid"] != lines[-1]["pid"])
    job.trains_at(0.005, steps=40)
    for rank in (0, 1):
        again = [x for x in job.journal(rank) if x["pid"] == job.journal(rank)[-1]["pid"]]
        assert again[0]["step"] == step + 1
        rates = [x["lr"] for x in again]  # its own until the Weaver has the new worker's greeting
        assert rates == [0.001] * rates.count(0.001) + [0.005] * rates.count(0.005)

    left = run.torchloom("drain", "g0")
    assert left.returncode == 0, left.stdout + left.stderr
    until(lambda: job.process.poll() is not None)
    assert job.process.returncode == 0, (job.folder / "log").read_text()
    last = [job.journal(rank)[-1]["step"] for rank in (0, 1)]
    assert last[0] == last[1] == max(job.checkpoints())


def test_without_a_weaver_losses_are_those_of_the_script_alone(start):
    config = {"steps": 60, "step_s": 0}
    alone = start("alone", (SCRIPTS / NAME).read_text(), config=config)
    assert alone.process.wait() == 0
    with_loom = start("attached", attached(NAME)[0], config=config)
    assert with_loom.process.wait() == 0
    for rank in (0, 1):
        losses = [[x["loss"] for x in job.journal(rank)] for job in (alone, with_loom)]
        assert losses[0] == losses[1]
        assert len(losses[0]) == 60


class Population:
    def __init__(self, folder, kind, awaits=__file__, **environment):
        script = Path(__file__).parent / "ray_population.py"
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parents[2])} | environment
        self.process = subprocess.Popen(
            [sys.executable, script, kind, awaits],
            env=os.environ | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
        )

    def lines(self):
        """Wait for its end, and return what it printed."""
        printed, errors = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, errors[-3000:]
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("kind", ["synch", "asynchronous"])
def test_a_worse_member_takes_over_a_better_one_in_its_own_process(tmp_path, kind):
    lines = Population(tmp_path, kind).lines()
    of = [[line for line in lines if line["trial"] == trial] for trial in (0, 1)]
    assert [line["loss"] for line in of[0]] == [1.0] * len(of[0])
    losses = [line["loss"] for line in of[1]]
    assert losses == [2.0] * losses.count(2.0) + [1.0] * losses.count(1.0)
    assert losses[0] == 2.0
    assert losses[-1] == 1.0
    assert all(line["lr"] == line["in"] for line in lines)
    assert len({line["process"] for line in lines}) == 2


@pytest.mark.parametrize(("kind", "ending"), [("synch", ""), ("failing", "failed")])
def test_a_members_own_rate_and_its_end_are_reported(start_run, tmp_path, kind, ending):  # noqa: F811
    run = start_run("[weaver]\nstate_dir = 'state'")
    run.start_weaver()
    go = tmp_path / "go"
    members = Population(tmp_path, kind, go, TORCHLOOM_JOIN=str(run.state / "join.json"))
    until(lambda: len(run.ask("status")["workers"]) == 2)
    go.touch()
    lines = members.lines()
    better, worse = sorted(run.ask("status")["workers"], key=lambda worker: worker["worker"])
    assert better["knobs"]["lr"] == 0.5
    assert worse["knobs"]["lr"] < 0.5
    if not ending:
        assert worse["knobs"]["lr"] == [line["lr"] for line in lines if line["trial"] == 1][-1]
    until(lambda: run.worker(better["worker"])["state"] == "left")
    until(lambda: run.worker(worse["worker"])["ending"] == ending)
    assert run.worker(worse["worker"])["state"] == ("gone" if ending else "left")
    assert run.torchloom("pause").returncode != 0


def test_a_script_that_starts_the_trainer_is_refused_in_one_line():
    from torchloom_threadlet.adapters.ray import attach

    with pytest.raises(ConfigError, match="need a worker of Ray Train"):
        attach()
