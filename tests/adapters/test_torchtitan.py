"""torchtitan's ranks change, pause, save and leave at one step, and go on from a checkpoint."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.waiting import eventually
from torchloom_core.floor.errors import ConfigError
from torchloom_core.wire.operations import Checkpoint, Drain, SetKnobs
from torchloom_threadlet.testing import AdapterContract

pytestmark = [needs("torchtitan"), pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent / "titan_trainer.py"
ADMITTED_WITH = ("lr", "gc_interval")


def steps_of(job, rank=0):
    """Return the last line of each step: after a restart some are made again."""
    return {line["step"]: line for line in job.journal(rank)}


class TestTorchtitan(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.torchtitan.adapter import TorchtitanAdapter

        adapters = [TorchtitanAdapter(SimpleNamespace()) for _ in range(count)]
        for adapter in adapters:
            adapter.leave = lambda: None  # without a trainer
        return ranks_of(*adapters)


def test_a_configuration_that_does_not_exist_is_named_in_one_line():
    from torchloom_threadlet.adapters.torchtitan.trainer import config_of

    with pytest.raises(ConfigError, match=r"^--config no_such\.debug: need MODULE\.FUNCTION"):
        config_of("no_such.debug")


def test_a_trainer_that_fails_does_not_leave_on_purpose():
    from torchloom_threadlet.adapters.torchtitan.trainer import LoomSteps

    closed = []
    plain = type("Plain", (), {"close": lambda self: closed.append("trainer")})
    trainer = type("Attached", (LoomSteps, plain), {})()
    trainer.loom = SimpleNamespace(inert=True, close=lambda: closed.append("loom"))
    try:
        [].pop()
    except IndexError:
        trainer.close()
    assert closed == ["trainer"]
    trainer.close()
    assert closed == ["trainer", "loom", "trainer"]


async def test_ranks_change_pause_save_and_leave_at_one_step(weaver, start, tmp_path):
    job = start("--step-s", 0.05)
    await job.admit(weaver)
    values = {"lr": 0.01, "clip_norm": 0.5, "gradient_accumulation_steps": 2, "gc_interval": 7}
    acks = await job.offer(weaver, 1, SetKnobs(values=values))
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await job.goes_on()
    for rank in job.ranks:
        before, after = (steps_of(job, rank)[number] for number in (step, step + 1))
        assert (before["clip"], before["accumulate"], before["gc"]) == (1.0, 1, 50)
        assert (after["clip"], after["accumulate"], after["gc"]) == (0.5, 2, 7)
        assert before["lr"] < 0.001 < 0.009 < after["lr"]
        assert len(after["losses"]) == 2
    batch = await weaver.beat(lambda batch: "fwd_bwd_s" in str(batch), "g0-0")
    for name in ("loss", "flops_per_s", "optim_s", "fetching_batch_s", "titan_step_s"):
        assert name in str(batch)

    await job.pause_and_resume(weaver, 2)

    acks = await job.offer(weaver, 3, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = {ack.step for ack in acks}
    assert (tmp_path / "checkpoint" / f"step-{saved}" / ".metadata").exists()

    left = await job.offer(weaver, 4, Drain())
    assert {ack.status for ack in left} == {"applied"}, left
    assert await job.end() == 0
    (end,) = {ack.step for ack in left}
    assert (tmp_path / "checkpoint" / f"step-{end}" / ".metadata").exists()
    assert max(steps_of(job)) == end


async def test_a_killed_rank_goes_on_from_the_checkpoint_as_undisturbed(weaver, start):
    job = start("--steps", 24, "--every", 7, "--step-s", 0.2, name="killed")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 10)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    assert await job.end() == 0
    alone = start("--steps", 24, "--every", 7, "--plain", name="alone", attached=False)
    assert await alone.end() == 0
    for rank in job.ranks:  # also what it made twice
        assert job.by_step(rank) == alone.by_step(rank)
        assert len(job.journal(rank)) > 24 == len(alone.journal(rank))


async def test_a_rate_that_was_set_keeps_its_schedule_after_a_kill(weaver, start):
    job = start("--steps", 40, "--every", 7, "--step-s", 0.2, name="killed")
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values={"lr": 0.01, "clip_norm": 0.5}))
    assert {ack.status for ack in acks} == {"applied"}, acks
    await eventually(lambda: len(job.journal(0)) >= 24)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    await job.admit(weaver)
    assert job.hellos[0].values["lr"] == 0.01  # as it was set: nothing to restore
    assert await job.end() == 0
    for rank in job.ranks:
        assert len(job.journal(rank)) > 40
        assert {len(lines) for lines in job.by_step(rank).values()} == {1}
        assert job.journal(rank)[-1]["clip"] == 0.5


async def test_without_a_weaver_losses_are_those_of_the_plain_trainer_to_the_bit(start):
    jobs = [
        start("--steps", 6, *arguments, name=name, attached=False)
        for name, arguments in (("inert", ()), ("plain", ("--plain",)))
    ]
    for job in jobs:
        assert await job.end() == 0
    inert, plain = jobs
    assert [steps_of(inert, rank) for rank in (0, 1)] == [steps_of(plain, rank) for rank in (0, 1)]
    assert len(steps_of(plain)) == 6
