"""Ranks under plain torchrun change, pause and leave at one step."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Drain, FencedChange, Pause, Resume, SetKnobs

pytestmark = [pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent / "torchrun_trainer.py"


class Job:
    """All ranks of one torchrun, and their incarnations known to the Weaver."""

    def __init__(self, process, folder, ranks):
        self.process, self._folder, self.ranks = process, folder, range(ranks)
        self.hellos = {}

    def journal(self, rank, event="step"):
        path = self._folder / f"{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
        return [line for line in lines if line["event"] == event]

    async def admit(self, weaver):
        for rank in self.ranks:
            old = self.hellos.get(rank)

            def restarted(rank=rank, old=old):
                return [
                    e
                    for e in weaver.events
                    if isinstance(e, Hello)
                    and e.worker == f"g0-{rank}"
                    and (old is None or e.incarnation > old.incarnation)
                    and {"odd", "lr"} <= {spec.name for spec in e.knobs}
                ]

            (hello, *_) = await weaver.until(restarted)
            self.hellos[rank] = await weaver.admit(hello.worker, incarnation=hello.incarnation)

    async def goes_on(self, rank=0, steps=3):
        done = len(self.journal(rank))
        await eventually(lambda: len(self.journal(rank)) >= done + steps)

    async def offer(self, weaver, number, do, **fields):
        """Offer a change to all, late to the last rank; return the final acks."""
        operation = FencedChange(number=number, do=do, groups=fields.pop("groups", ()))
        for rank, hello in self.hellos.items():
            if rank == self.ranks[-1]:
                await self.goes_on()
            await weaver.send(hello, operation, f"c{number}-{rank}", **fields)
        return [await weaver.final(f"c{number}-{rank}") for rank in self.hellos]

    async def end(self):
        return await asyncio.to_thread(self.process.wait, DEADLINE_S)


@pytest.fixture
def start(tmp_path, join_file, end_with_sidecars):
    started = []

    def start(*arguments, ranks=2):
        environment = os.environ | {"TORCHLOOM_JOIN": str(join_file), "OMP_NUM_THREADS": "1"}
        environment["TORCHLOOM_HEARTBEAT_S"] = "0.2"
        # torchrun's own store keeps gloo's addresses of an ended incarnation.
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", ranks, "--max-restarts", "3", TRAINER]
        command += ["--journal", tmp_path, *arguments]
        with (tmp_path / "errors").open("w") as errors:
            process = subprocess.Popen(list(map(str, command)), env=environment, stderr=errors)
        started.append(process)
        return Job(process, tmp_path, ranks)

    yield start
    for process in started:
        end_with_sidecars(process)


def seen(job):
    """Return the ranks' lines of each step, without the fields that differ anyway."""
    by_step = {}
    for rank in job.ranks:
        for line in job.journal(rank):
            by_step.setdefault(line["step"], set()).add(json.dumps(line))
    return by_step


@pytest.mark.parametrize("kind", [(), ("--fsdp",)], ids=["DDP", "FSDP"])
async def test_a_set_of_knobs_lands_on_all_ranks_at_one_step_and_all_leave_at_one(
    weaver, start, kind
):
    job = start(*kind)
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.002, "odd": 7}))
    assert {ack.status for ack in acks} == {"applied"}
    (step,) = {ack.step for ack in acks}
    await job.goes_on()
    before, after = (job.journal(0)[at] for at in (step, step + 1))
    assert (before["step"], before["lr"], before["odd"]) == (step, 0.001, 0)
    assert (after["step"], after["lr"], after["odd"]) == (step + 1, 0.002, 7)

    refused = await job.offer(weaver, 2, SetKnobs(values={"lr": 0.5, "odd": 0.5}))
    assert [ack.detail for ack in refused] == ["knob odd: need a whole number, was 0.5"] * 2

    # A drain of one group drains all ranks: none can continue without the others.
    left = await job.offer(weaver, 3, Drain(), groups=("another",))
    assert {ack.status for ack in left} == {"applied"}
    assert await job.end() == 0
    assert len({ack.step for ack in left}) == 1
    assert {len(job.journal(rank)) for rank in job.ranks} == {left[0].step + 1}
    assert [len(job.journal(rank, "drain")) for rank in job.ranks] == [1, 1]
    assert {len(lines) for lines in seen(job).values()} == {1}


async def test_ranks_that_start_before_the_weaver_enrol_and_change_at_one_step(
    weaver, start, join_file
):
    join_file.rename(aside := join_file.with_suffix(".aside"))
    job = start()
    await job.goes_on(steps=20)
    aside.rename(join_file)
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.002, "odd": 7}))
    assert {ack.status for ack in acks} == {"applied"}
    (step,) = {ack.step for ack in acks}
    assert step > 20
    await job.goes_on(rank=1)
    assert {len(lines) for lines in list(seen(job).values())[: step + 2]} == {1}
    assert [job.journal(rank)[step + 1]["odd"] for rank in job.ranks] == [7, 7]


async def test_no_rank_trains_with_a_change_that_one_rank_cannot_make(weaver, start):
    job = start("--fails-on", "1")
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.002, "odd": 7}))
    assert "failed" in {ack.status for ack in acks}
    await job.goes_on()
    both = [line for rank in job.ranks for line in job.journal(rank)]
    assert {(line["lr"], line["odd"]) for line in both} == {(0.001, 0)}
    acks = await job.offer(weaver, 2, SetKnobs(values={"lr": 0.004}))
    assert {ack.status for ack in acks} == {"applied"}


async def test_all_ranks_pause_at_one_step(weaver, start):
    job = start()
    await job.admit(weaver)
    async with weaver.confirming_pause("v1"):
        acks = await job.offer(weaver, 1, Pause(), cause="v1")
        assert {ack.status for ack in acks} == {"applied"}
        (step,) = {ack.step for ack in acks}
        for rank in job.ranks:
            await weaver.beat(lambda batch: batch.state == "paused", f"g0-{rank}")
        assert [len(job.journal(rank)) for rank in job.ranks] == [step, step]
        for rank, hello in job.hellos.items():
            assert (await weaver.ask(hello, Resume(), f"r{rank}")).status == "applied"
    await job.goes_on()


@pytest.mark.parametrize("closes", [True, False])
async def test_ranks_whose_loops_end_at_different_steps_do_not_wait(weaver, start, closes):
    options = ["--close"] if closes else []
    job = start("--last-rank-ends-at", 60, "--steps", 200, *options, ranks=3)
    await job.admit(weaver)
    await eventually(lambda: job.journal(2, "waits"))
    await job.goes_on(steps=20)
    if closes:
        operation = FencedChange(number=1, do=SetKnobs(values={"lr": 0.002}))
        ack = await weaver.ask(job.hellos[0], operation)
        assert ack.status == "rejected"
    assert await job.end() == 0
    assert [len(job.journal(rank)) for rank in job.ranks] == [200, 200, 60]


async def test_a_restarted_job_continues_with_its_checkpoints_knobs(weaver, start):
    job = start()
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.002, "odd": 7}))
    assert {ack.status for ack in acks} == {"applied"}
    await job.goes_on()
    done = len(job.journal(0))
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) > done + 5)
    again = job.journal(0)[-1]
    assert (again["lr"], again["odd"]) == (0.002, 7)
    acks = await job.offer(weaver, 2, SetKnobs(values={"odd": 8}))
    assert {ack.status for ack in acks} == {"applied"}
    assert acks[0].step == acks[1].step > done
