"""Ranks with an Accelerator change, pause, save and leave at one step, and resume exactly."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.waiting import eventually
from torchloom_core.wire.messages import Hello
from torchloom_core.wire.operations import Checkpoint, Drain, SetKnobs
from torchloom_threadlet.testing import AdapterContract
from torchloom_threadlet.training.optimizer_knobs import managed

pytestmark = [needs("accelerate"), pytest.mark.integration]
TRAINER = Path(__file__).parent / "accelerate_trainer.py"
ADMITTED_WITH = ("lr", "clip_norm")
KNOBS = {"lr": 0.01, "clip_norm": 0.5, "gradient_accumulation_steps": 3}


class TestAccelerate(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.accelerate.adapter import AccelerateAdapter

        return ranks_of(*(AccelerateAdapter() for _ in range(count)))


def test_manage_unwraps_what_accelerate_has_prepared():
    from accelerate import Accelerator

    weights = [torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.AdamW(weights)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    prepared = Accelerator(cpu=True).prepare(optimizer, scheduler)
    (found,) = managed(prepared)
    assert (found.optimizer, found.scheduler) == (optimizer, scheduler)
    loom = SimpleNamespace(knob=lambda name, get, set, **form: name == "lr" and set(0.5))
    found.register(loom, can_vote=True)
    assert scheduler.base_lrs == [0.5]


async def test_ranks_change_pause_save_and_leave_at_one_step(weaver, start, tmp_path):
    job = start("--every", 100_000)
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await job.goes_on(steps=5)
    for rank in job.ranks:
        steps = job.by_step(rank)
        ((before,), (after,)) = steps[step], steps[step + 1]
        assert before["lr"] <= 0.001 < 0.009 < after["lr"]
        assert (before["accumulate"], after["accumulate"]) == (2, 3)
        assert len(after["losses"]) == 3 or len(steps[step + 2][0]["losses"]) == 3
    weights = [{n: line["weights"] for n, (line,) in job.by_step(r).items()} for r in job.ranks]
    assert all(weights[0][n] == weights[1][n] for n in weights[0].keys() & weights[1].keys())

    await job.pause_and_resume(weaver, 2)

    acks = await job.offer(weaver, 3, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = {ack.step for ack in acks}
    assert (tmp_path / "checkpoints" / f"step-{saved}" / "torchloom.json").exists()
    left = await job.offer(weaver, 4, Drain())
    assert {ack.status for ack in left} == {"applied"}, left
    assert await job.end() == 0
    (end,) = {ack.step for ack in left}
    assert job.journal(0)[-1]["step"] == end
    assert (tmp_path / "checkpoints" / f"step-{end}" / "torchloom.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("every", [7, 13], ids=["in an epoch", "at an epoch's end"])
async def test_a_killed_rank_resumes_bitwise(weaver, start, every):
    job = start("--steps", 60, "--every", every, name="killed")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 33)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    assert await job.end() == 0
    inert = start("--steps", 60, "--every", every, name="inert", attached=False)
    plain = start("--steps", 60, "--plain", name="plain", attached=False)
    assert await plain.end() == await inert.end() == 0
    for rank in job.ranks:
        assert job.by_step(rank) == inert.by_step(rank) == plain.by_step(rank)
    assert len(job.journal(0)) > len(plain.journal(0)) == 60


@pytest.mark.long
async def test_changed_knobs_survive_a_kill(weaver, start):
    job = start()
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    await job.goes_on(steps=25)
    await eventually(lambda: 3 <= job.journal(0)[-1]["step"] % 10 <= 5)  # so some are made again
    steps, first = max(job.by_step()), job.hellos[0]
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    await job.admit(weaver)
    await eventually(lambda: max(job.by_step()) > steps + 10)
    for rank in job.ranks:
        assert {len(lines) for lines in job.by_step(rank).values()} == {1}
    (last,) = job.by_step()[max(job.by_step())]
    assert last["accumulate"] == 3
    assert last["lr"] > 0.005
    assert len(job.journal(0)) > len(job.by_step())
    await weaver.until(
        lambda: any(
            isinstance(e, Hello) and e.values.get("clip_norm") == 0.5
            for e in weaver.events
            if e.incarnation > first.incarnation
        )
    )


@pytest.mark.long
async def test_a_loader_that_cannot_resume_is_named_and_torchloom_clips_for_a_script_that_does_not(
    weaver, start, tmp_path
):
    job = start("--plain-loader", "--clips-not")
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"clip_norm": 0.001}))
    assert {ack.status for ack in acks} == {"applied"}, acks
    await eventually(lambda: "use_stateful_dataloader" in (tmp_path / "errors").read_text())
