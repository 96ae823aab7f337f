"""A suspended run of two DDP ranks goes on to the bit as if it had not been disturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import until

pytestmark = pytest.mark.integration

TRAINER = Path(__file__).parents[1] / "checkpoint" / "trainer.py"
CONFIG = """
[weaver]
state_dir = "state"
tick_s = 0.25

[arbiter]
cooldown_s = 0
"""
RANKS, STEPS = 2, 120
DEPTHS = ("frozen", "stored")


class Job:
    """Two ranks under torchrun, in a run."""

    def __init__(self, run, name="journal"):
        self.run, self.folder, self.name = run, run.folder, name
        self.process = None

    def start(self, *options, step_s=0.05, linked=True, **environment):
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        place = self.folder / f"{self.name}.checkpoints"
        own = ["--wrap", "ddp", "--steps", str(STEPS), "--step-s", str(step_s), *options]
        join = self.folder / "state" / "join.json" if linked else self.folder / "none.json"
        with (self.folder / "errors").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *torchrun, TRAINER, place, self.folder / self.name, *own],
                env=os.environ
                | {
                    "TORCHLOOM_JOIN": str(join),
                    "TORCHLOOM_HEARTBEAT_S": "0.2",
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": "lo",
                }
                | environment,
                cwd=self.folder,
                stderr=errors,
            )
        return self

    def lines(self, rank=0):
        path = self.folder / f"{self.name}.{rank}"
        return path.read_text().splitlines() if path.exists() else []

    def steps(self, rank=0):
        found = [line.split() for line in self.lines(rank) if line.startswith("step")]
        assert len({step for _, step, _ in found}) == len(found)  # none was done twice
        return {int(step): loss for _, step, loss in found}

    def trains(self):
        """Wait until the Weaver knows all ranks."""

        def known():
            states = [worker["state"] for worker in self.run.ask("status")["workers"]]
            return states.count("training") == RANKS or self.process.poll() is not None

        until(known)
        assert self.process.poll() is None, self.errors()

    def ends(self):
        assert self.process.wait(100) == 0, self.errors()

    def trainers(self):
        found = psutil.Process(self.process.pid).children()
        return [one for one in found if str(TRAINER) in one.cmdline()]

    def errors(self):
        return (self.folder / "errors").read_text()

    def end(self):
        if self.process is not None and self.process.poll() is None:
            for one in [*self.trainers(), psutil.Process(self.process.pid)]:
                one.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the ranks do undisturbed, without a Weaver."""

    class Alone:
        folder = tmp_path_factory.mktemp("undisturbed")

    job = Job(Alone).start(step_s=0.0, linked=False)
    job.ends()
    return job


@pytest.fixture
def run(start_run):
    run = start_run(CONFIG)
    run.start_weaver()
    return run


@pytest.fixture
def job(run):
    job = Job(run).start()
    yield job
    job.end()


def act(run, **action):
    """Have a person's action carried out; return its outcome."""
    answer = run.ask("propose", {"action": action})
    assert answer["ok"], answer
    verdict = answer["ids"][0]
    causes = [b["cause"] for _, b in run.records("command_status") if b["command"] == verdict]
    verdict = causes[0] if causes else verdict
    return until(lambda: [b for _, b in run.records("outcome") if b["verdict"] == verdict])[0]


def suspend(run, depth):
    found = act(run, kind="suspend", depth=depth)
    assert found["result"] == "done", found
    return int(found["detail"].partition(" at step ")[2].partition(",")[0])


def same(job, undisturbed):
    job.ends()
    for rank in range(RANKS):
        assert job.steps(rank) == undisturbed.steps(rank)
        assert job.lines(rank)[-1] == undisturbed.lines(rank)[-1]


def test_a_frozen_run_goes_on_to_the_bit(run, job, undisturbed):
    job.trains()
    step = suspend(run, "frozen")
    assert [one.status() for one in job.trainers()] == [psutil.STATUS_STOPPED] * RANKS
    run.ticks(12)
    assert max(job.steps()) == step
    (shown,) = run.ask("status")["suspensions"]
    assert (shown["depth"], shown["state"], shown["step"]) == ("frozen", "suspended", step)
    assert act(run, kind="resume")["result"] == "done"
    same(job, undisturbed)
    assert not run.ask("status")["suspensions"]


@pytest.mark.long
def test_a_stored_run_ends_in_order_and_goes_on_in_other_processes(run, job, undisturbed):
    job.trains()
    step = suspend(run, "stored")
    job.ends()
    assert max(job.steps()) == step
    assert act(run, kind="resume")["detail"].endswith(f"they go on after step {step}")
    job.start()
    same(job, undisturbed)
    assert f"begin {step}" in job.lines()


PARKS = ("--memory-every-s", "1000")


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [False, True], ids=["the_same", "other"])
def test_a_parked_run_goes_on_to_the_bit_in_these_processes(run, undisturbed, elsewhere):
    job = Job(run).start(*PARKS)
    try:
        job.trains()
        step = suspend(run, "parked")
        if elsewhere:
            parked = job.process
            job.start(*PARKS)
            assert parked.wait(100) == 0, job.errors()
            until(lambda: f"begin {step}" in job.lines())
        else:
            assert act(run, kind="resume")["result"] == "done"
        same(job, undisturbed)
        until(lambda: not run.ask("status")["suspensions"])
    finally:
        job.end()


@pytest.mark.long
def test_a_killed_weaver_and_killed_sidecars_leave_a_frozen_run_to_be_resumed(
    run, job, undisturbed
):
    job.trains()
    step = suspend(run, "frozen")
    run.kill_weaver()
    for trainer in job.trainers():
        for child in trainer.children():
            if "torchloom_threadlet.sidecar" in child.cmdline():
                child.send_signal(signal.SIGKILL)
    run.start_weaver()

    def stopped():
        return all(one.status() == psutil.STATUS_STOPPED for one in job.trainers())

    until(stopped)  # by the new sidecars, which the killed ones' trainers have started
    assert max(job.steps()) == step
    assert act(run, kind="resume")["result"] == "done"
    same(job, undisturbed)


@pytest.mark.long
def test_a_killed_trainer_ends_the_suspension(run, job):
    job.trains()
    suspend(run, "frozen")
    job.trainers()[1].kill()
    until(lambda: not run.ask("status")["suspensions"])
    job.process.wait(100)


@pytest.mark.long
@pytest.mark.parametrize("depth", ["frozen", "stored"])
def test_a_role_gives_its_node_to_one_of_higher_priority_and_goes_on_to_the_bit(
    start_run, undisturbed, depth
):
    leases = f"""
[policies.node_leases]
roles = ["batch", "urgent"]
priority = {{ urgent = 10, batch = 1 }}
depth = "{depth}"
free_s = 1.0
"""
    run = start_run(CONFIG + leases)
    run.start_weaver()
    urgent = run.start_light("x", TORCHLOOM_ROLE="urgent", TORCHLOOM_NODE="n0")
    until(lambda: run.ask("status")["workers"])
    job = Job(run).start(TORCHLOOM_ROLE="batch", TORCHLOOM_NODE="n0")
    try:
        (one,) = until(lambda: run.ask("status")["suspensions"])
        assert (one["role"], one["by"], one["depth"]) == ("batch", "node_leases", depth)
        urgent.process.kill()  # its sidecar reports it
        if depth == "stored":
            job.ends()
            until(lambda: resumes(run))
            job.start(TORCHLOOM_ROLE="batch", TORCHLOOM_NODE="n0")
        same(job, undisturbed)
    finally:
        job.end()


def resumes(run):
    return [b for _, b in run.records("outcome") if b["action"]["kind"] == "resume"]
