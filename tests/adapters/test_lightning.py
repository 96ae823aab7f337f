"""Lightning's ranks change, pause, save, rewind and leave at one step, and resume exactly."""

import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.waiting import eventually
from torchloom_core.wire.operations import Checkpoint, Drain, Rewind, SetKnobs
from torchloom_threadlet.testing import AdapterContract

pytestmark = [needs("lightning"), pytest.mark.integration]
TRAINER = Path(__file__).parent / "lightning_trainer.py"
ADMITTED_WITH = ("lr", "batch_size")
OWN_NORM = "unclipped_norm"


def steps_of(job, rank=0):
    """Return the last line of each step: after a restart some are made again."""
    return {line["step"]: line for line in job.journal(rank)}


class TestLightning(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.lightning.adapter import LightningAdapter

        adapters = [LightningAdapter(None, 3) for _ in range(count)]
        for adapter in adapters:
            adapter._trainer = SimpleNamespace()
            adapter.save_now = lambda: None  # without a Trainer
        return ranks_of(*adapters)


@pytest.mark.long
async def test_ranks_change_pause_save_rewind_and_leave_at_one_step(weaver, start, tmp_path):
    job = start("--every", 1000)
    await job.admit(weaver)
    values = {"lr": 0.01, "clip_norm": 0.5, "accumulate_grad_batches": 2, "batch_size": 16}
    acks = await job.offer(weaver, 1, SetKnobs(values=values))
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await job.goes_on(steps=12)
    for rank in job.ranks:
        steps = steps_of(job, rank)
        assert (steps[step]["clip"], steps[step]["accumulate"]) == (1.0, 1)
        assert (steps[step + 1]["clip"], steps[step + 1]["accumulate"]) == (0.5, 2)
        assert steps[step]["lr"] <= 0.001 < 0.009 < steps[step + 1]["lr"]
    assert steps_of(job)[max(steps_of(job))]["samples"] == 16

    await job.pause_and_resume(weaver, 2)

    for do in (Checkpoint(), Drain()):
        alone = await weaver.ask(job.hellos[0], do, f"alone-{type(do).__name__}")
        assert alone.status == "rejected"
        assert "at one step" in alone.detail
    acks = await job.offer(weaver, 3, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = {ack.step for ack in acks}
    assert (tmp_path / "checkpoints" / f"last-step={saved}.ckpt").exists()

    await job.goes_on(steps=4)
    before = steps_of(job)
    acks = await job.offer(weaver, 4, Rewind())
    assert {ack.status for ack in acks} == {"applied"}, acks
    await eventually(lambda: len([1 for at in job.journal(0) if at["step"] == saved + 4]) == 2)
    assert [steps_of(job)[saved + n] for n in range(1, 5)] == [
        before[saved + n] for n in range(1, 5)
    ]

    left = await job.offer(weaver, 5, Drain())
    assert {ack.status for ack in left} == {"applied"}, left
    assert await job.end() == 0
    (end,) = {ack.step for ack in left}
    assert (tmp_path / "checkpoints" / f"last-step={end}.ckpt").exists()
    norms = [row for batch in weaver.telemetry for row in columns(batch, "grad_norm", OWN_NORM)]
    assert len(norms) > 20
    assert all(norm == pytest.approx(own) for norm, own in norms)


def columns(batch, *names):
    """Return the values of these metrics in each sample of a batch that has them."""
    if not set(names) <= set(batch.metrics):
        return []
    rows = np.frombuffer(batch.values).reshape(-1, len(batch.metrics))
    found = rows[:, [batch.metrics.index(name) for name in names]]
    return found[~np.isnan(found).any(axis=1)].tolist()


@pytest.mark.long
async def test_a_killed_rank_resumes_in_mid_epoch_bitwise(weaver, start):
    job = start("--steps", 60, "--every", 7, name="killed")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 33)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    assert await job.end() == 0
    alone = start("--steps", 60, "--every", 7, "--plain", name="alone", attached=False)
    assert await alone.end() == 0
    for rank in job.ranks:
        assert steps_of(job, rank) == steps_of(alone, rank)
        assert len(job.journal(rank)) > 60


@pytest.mark.long
async def test_a_save_or_a_rewind_that_fails_on_one_rank_fails_on_all_and_training_continues(
    weaver, start, tmp_path
):
    job = start("--every", 1_000_000)
    await job.admit(weaver)
    folder = tmp_path / "checkpoints"
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()  # rank 0 alone writes into it
    for number, operation in enumerate((Checkpoint(), Drain()), start=1):
        acks = await job.offer(weaver, number, operation)
        assert {ack.status for ack in acks} == {"failed"}, acks
        assert "no checkpoint: rank 0: " in "".join(ack.detail for ack in acks)
        await job.goes_on(steps=3)
    folder.unlink()
    (tmp_path / "fails").touch()  # a hook on rank 1
    acks = await job.offer(weaver, 6, Checkpoint())
    assert all("cannot write its own file" in ack.detail for ack in acks)
    await job.goes_on(steps=3)
    assert not [*folder.glob("last-step=*.ckpt")]
    (tmp_path / "fails").unlink()
    acks = await job.offer(weaver, 7, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = folder.glob("last-step=*.ckpt")
    saved.write_bytes(saved.read_bytes()[:1000])
    acks = await job.offer(weaver, 8, Rewind())
    assert {ack.status for ack in acks} == {"failed"}, acks
    assert all(str(saved) in ack.detail for ack in acks)
    await job.goes_on(steps=3)
    saved.unlink()
    acks = await job.offer(weaver, 9, Drain())
    assert {ack.status for ack in acks} == {"applied"}, acks
    assert await job.end() == 0
    assert len([*folder.glob("last-step=*.ckpt")]) == 1


@pytest.mark.long
async def test_a_loader_that_cannot_resume_is_named_at_the_start(start, tmp_path):
    job = start("--plain-loader", "--steps", 3, attached=False)
    assert await job.end() == 0
    (line,) = [x for x in (tmp_path / "errors").read_text().splitlines() if "cannot resume" in x]
    assert "StatefulDataLoader" in line
