"""Ranks with a DeepSpeed engine change, pause, save and leave at one step, and resume exactly."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.waiting import eventually
from torchloom_core.wire.operations import Checkpoint, Drain, SetKnobs
from torchloom_threadlet.testing import AdapterContract
from torchloom_threadlet.training.optimizer_knobs import _scale_schedule

pytestmark = [
    needs("deepspeed"),
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TRAINER = Path(__file__).parent / "deepspeed_trainer.py"
ADMITTED_WITH = ("lr", "clip_norm")
KNOBS = {"lr": 0.01, "clip_norm": 0.001, "gradient_accumulation_steps": 3, "weight_decay": 0.1}


class TestDeepSpeed(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.deepspeed.adapter import DeepSpeedAdapter

        return ranks_of(*(DeepSpeedAdapter() for _ in range(count)))


def test_a_warmup_of_deepspeed_is_scaled_with_the_learning_rate():
    scheduler = SimpleNamespace(min_lrs=[0.0], max_lrs=[0.1], delta_lrs=[0.1])
    _scale_schedule(scheduler, [{"lr": 0.05}], 2.0)
    assert (scheduler.max_lrs, scheduler.delta_lrs) == ([0.2], [0.2])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
async def test_ranks_change_pause_save_and_leave_at_one_step(weaver, start, tmp_path, stage):
    job = start("--every", 100_000, "--stage", stage)
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 12)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await job.goes_on(steps=5)
    for rank in job.ranks:
        steps = job.by_step(rank)
        ((before,), (after,)) = steps[step], steps[step + 1]
        assert (before["lr"], after["lr"]) == pytest.approx((0.001, 0.01))
        assert (before["clip"], after["clip"]) == (1.0, 0.001)
        assert (len(before["losses"]), len(after["losses"])) == (2, 3)
        assert steps[step + 4][0]["lr"] == pytest.approx(0.01)  # the scheduler has stepped

    await job.pause_and_resume(weaver, 2)

    acks = await job.offer(weaver, 3, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = {ack.step for ack in acks}
    assert (tmp_path / "checkpoints" / f"step-{saved}" / "torchloom_rank1.pt").exists()
    left = await job.offer(weaver, 4, Drain())
    assert {ack.status for ack in left} == {"applied"}, left
    assert await job.end() == 0
    (end,) = {ack.step for ack in left}
    assert job.journal(0)[-1]["step"] == end
    assert (tmp_path / "checkpoints" / "latest").read_text() == f"step-{end}"
    logged = {name for batch in weaver.telemetry for name in batch.metrics}
    assert {"loss", "grad_norm", "samples_per_s"} <= logged


@pytest.mark.parametrize("stage", [0, 2, 3])
async def test_a_killed_rank_resumes_in_mid_epoch_bitwise(weaver, start, stage):
    options = ("--steps", 60, "--every", 7, "--stage", stage)
    job = start(*options, name="killed")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 33)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    assert await job.end() == 0
    inert = start(*options, name="inert", attached=False)
    plain = start(*options, "--plain", name="plain", attached=False)
    assert await plain.end() == await inert.end() == 0
    for rank in job.ranks:
        alone = plain.by_step(rank)
        assert inert.by_step(rank) == alone
        assert job.by_step(rank) == alone
        assert len(alone) == 60
    assert len(job.journal(0)) > len(job.by_step())


async def test_changed_knobs_survive_a_kill(weaver, start):
    job = start()
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 12)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    await job.goes_on(steps=25)
    steps = max(job.by_step())
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    await job.admit(weaver)
    await eventually(lambda: max(job.by_step()) > steps + 10)
    for rank in job.ranks:
        assert {len(lines) for lines in job.by_step(rank).values()} == {1}
    (last,) = job.by_step()[max(job.by_step())]
    assert (last["clip"], len(last["losses"])) == (0.001, 3)
    assert last["lr"] == pytest.approx(0.01)
