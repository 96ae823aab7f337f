"""Ranks under plain torchrun change, pause and leave at one step."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.threadlet.torchrun_ranks import Starter
from tests.waiting import eventually
from torchloom_core.wire.operations import Drain, FencedChange, Pause, Resume, SetKnobs

pytestmark = [pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent / "torchrun_trainer.py"


@pytest.fixture
def start(tmp_path, join_file, end_with_sidecars):
    starter = Starter(TRAINER, tmp_path, join_file, ("odd", "lr"))
    yield starter
    for process in starter.started:
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
