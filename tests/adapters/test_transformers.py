"""A Trainer's ranks change, pause, save, rewind and leave at one step, and resume exactly."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.adapters.contract_ranks import ranks_of
from tests.adapters.installed import needs
from tests.deadlines import DEADLINE_S
from tests.waiting import eventually
from torchloom_core.wire.operations import (
    Checkpoint,
    Drain,
    FencedChange,
    Rewind,
    SetKnobs,
)
from torchloom_threadlet.testing import AdapterContract

pytestmark = [needs("transformers"), pytest.mark.integration]
TRAINER = Path(__file__).parent / "transformers_trainer.py"
ADMITTED_WITH = ("lr", "batch_size")
ROOT = Path(__file__).parents[2]
KNOBS = {"lr": 0.01, "clip_norm": 0.5, "gradient_accumulation_steps": 3, "batch_size": 4}


def made_again(job):
    """Return how many lines there are of steps that were made before."""
    return len(job.journal(0)) - len(job.by_step())


class TestTransformers(AdapterContract):
    def ranks(self, count):
        from torchloom_threadlet.adapters.transformers.adapter import TransformersAdapter

        adapters = [TransformersAdapter() for _ in range(count)]
        for adapter in adapters:
            adapter.serve(SimpleNamespace(control=SimpleNamespace()), None)
            adapter.save_now = lambda: None  # without a Trainer
        return ranks_of(*adapters)


@pytest.mark.long
async def test_ranks_change_pause_save_rewind_and_leave_at_one_step(weaver, start, tmp_path):
    job = start("--every", 100_000)
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await job.goes_on(steps=12)
    ranks = [job.by_step(rank) for rank in job.ranks]
    for steps in ranks:
        ((before,), (after,)) = steps[step], steps[step + 1]
        assert (before["clip"], after["clip"]) == (1.0, 0.5)
        assert before["lr"] <= 0.001 < 0.009 < after["lr"]
        assert len(before["losses"]) == 1
        assert {steps[step + n][0]["accumulate"] for n in (8, 9, 10)} == {3}
        # An epoch's last step takes what is left.
        assert max(len(steps[step + n][0]["losses"]) for n in (8, 9, 10)) == 3
        assert 4 in {steps[step + n][0]["samples"] for n in (9, 10, 11)}
    weights = [{n: line["weights"] for n, (line,) in steps.items()} for steps in ranks]
    assert all(weights[0][n] == weights[1][n] for n in weights[0].keys() & weights[1].keys())

    await job.pause_and_resume(weaver, 2)

    alone = await weaver.ask(job.hellos[0], Checkpoint(), "alone")
    assert "at one step" in alone.detail
    acks = await job.offer(weaver, 3, Checkpoint())
    assert {ack.status for ack in acks} == {"applied"}, acks
    (saved,) = {ack.step for ack in acks}
    assert (tmp_path / "checkpoints" / f"checkpoint-{saved}" / "trainer_state.json").exists()

    await job.goes_on(steps=4)
    acks = await job.offer(weaver, 4, Rewind())
    assert {ack.status for ack in acks} == {"applied"}, acks
    await eventually(lambda: made_again(job) >= 4)
    assert {len(lines) for lines in job.by_step().values()} == {1}

    left = await job.offer(weaver, 5, Drain())
    assert {ack.status for ack in left} == {"applied"}, left
    assert await job.end() == 0
    (end,) = {ack.step for ack in left}
    assert job.journal(0)[-1]["step"] == end
    assert (tmp_path / "checkpoints" / f"checkpoint-{end}" / "trainer_state.json").exists()
    logged = {name for batch in weaver.telemetry for name in batch.metrics}
    assert {"loss", "mean_loss", "grad_norm", "learning_rate", "samples_per_s"} <= logged


@pytest.fixture
def alone(tmp_path, join_file, end_with_sidecars, monkeypatch):
    """Return a Trainer in a process of its own, without torchrun."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("TORCHLOOM_JOIN", str(join_file))
    command = [sys.executable, str(TRAINER), "--journal", str(tmp_path)]
    process = subprocess.Popen(command, cwd=tmp_path)
    yield process
    end_with_sidecars(process)


@pytest.mark.long
async def test_one_process_without_torchrun_is_steered_too(weaver, alone, tmp_path):
    await weaver.until(lambda: any("lr" in getattr(one, "values", {}) for one in weaver.events))
    hello = await weaver.admit()
    for number, do in enumerate((SetKnobs(values=KNOBS), Drain()), 1):
        change = FencedChange(number=number, do=do)
        ack = await weaver.ask(hello, change, f"c{number}")
        assert ack.status == "applied", ack
    assert (tmp_path / "checkpoints" / f"checkpoint-{ack.step}").exists()
    assert await asyncio.to_thread(alone.wait, DEADLINE_S) == 0


@pytest.mark.long
async def test_a_killed_rank_resumes_in_mid_epoch_bitwise(weaver, start):
    job = start("--steps", 60, "--every", 7, name="killed")
    await job.admit(weaver)
    await eventually(lambda: len(job.journal(0)) >= 33)
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    assert await job.end() == 0
    inert = start("--steps", 60, "--every", 7, name="inert", attached=False)
    plain = start("--steps", 60, "--every", 7, "--plain", name="plain", attached=False)
    assert await plain.end() == await inert.end() == 0
    for rank in job.ranks:
        alone = plain.by_step(rank)
        assert job.by_step(rank) == inert.by_step(rank) == alone
        assert len(alone) == 60
    assert made_again(job) > 0


@pytest.mark.long
async def test_changed_knobs_survive_a_kill_and_the_data_continues_exactly(weaver, start):
    job = start("--every", 10)
    await job.admit(weaver)
    acks = await job.offer(weaver, 1, SetKnobs(values=KNOBS))
    assert {ack.status for ack in acks} == {"applied"}, acks
    await job.goes_on(steps=35)
    await eventually(lambda: 3 <= job.journal(0)[-1]["step"] % 10 <= 5)  # so some are made again
    steps = max(job.by_step())
    os.kill(job.hellos[1].pid, signal.SIGKILL)
    for rank in job.ranks:
        weaver.enrolment.release(f"g0-{rank}")
    await job.admit(weaver)
    assert {name: job.hellos[0].values[name] for name in KNOBS if name != "lr"} == {
        name: value for name, value in KNOBS.items() if name != "lr"
    }
    await eventually(lambda: max(job.by_step()) > steps + 10)
    for rank in job.ranks:
        assert {len(lines) for lines in job.by_step(rank).values()} == {1}
    assert made_again(job) > 0
    (last,) = job.by_step()[max(job.by_step())]
    assert (last["clip"], last["samples"], last["accumulate"]) == (0.5, 4, 3)
    assert last["lr"] > 0.009


@pytest.mark.long
async def test_a_run_of_so_many_steps_makes_them_also_with_larger_steps(weaver, start):
    job = start("--steps", 150)
    await job.admit(weaver)
    larger = {"gradient_accumulation_steps": 6, "batch_size": 16}
    acks = await job.offer(weaver, 1, SetKnobs(values=larger))
    assert {ack.status for ack in acks} == {"applied"}, acks
    assert await job.end() == 0
    assert max(job.by_step()) == 150
