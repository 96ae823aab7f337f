"""torchtitan's torchft trainer: two groups change at one step, and one dies and comes back."""

import asyncio
import os
from pathlib import Path

import pytest

os.environ.setdefault("RUST_LOG", "error")  # the lighthouse's own lines, of this process

from torchft.coordination import LighthouseServer

from tests.adapters.installed import needs
from tests.waiting import eventually
from torchloom_core.wire.operations import Checkpoint, Drain, SetKnobs

pytestmark = [needs("torchtitan"), pytest.mark.integration, pytest.mark.long]
TRAINER = Path(__file__).parent / "titan_groups.py"
ADMITTED_WITH = ("lr", "gc_interval")


@pytest.fixture
def start_group(start):
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=10_000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=3000,
    )

    def start_group(number, *arguments, name="", **more):
        more |= {"TORCHFT_LIGHTHOUSE": lighthouse.address(), "TORCHFT_QUORUM_RETRIES": "100"}
        more |= {"name": name or f"g{number}", "group": f"g{number}"}
        return start("--group", number, *arguments, restarts=0, **more)

    yield start_group
    lighthouse.shutdown()


def train_together(jobs):
    latest = [job.journal(rank)[-1:] for job in jobs for rank in job.ranks]
    return all(lines and lines[0]["participants"] == 2 for lines in latest)


async def change(weaver, jobs, number, **values):
    """Return the step at which all ranks of all groups changed."""
    offers = [job.offer(weaver, number, SetKnobs(values=values)) for job in jobs]
    acks = [ack for found in await asyncio.gather(*offers) for ack in found]
    assert {ack.status for ack in acks} == {"applied"}, acks
    (step,) = {ack.step for ack in acks}
    await asyncio.gather(*(job.goes_on() for job in jobs))
    return step


def lines_at(jobs):
    """Return what all ranks wrote at each step of torchft's that they committed."""
    found = {}
    for job in jobs:
        for rank in job.ranks:
            before = -1
            for line in job.journal(rank):
                if line["quorum_step"] != before and line["participants"] == 2:
                    found.setdefault(line["quorum_step"], []).append((rank, line))
                before = line["quorum_step"]
    return found


async def test_groups_change_and_pause_at_one_step_and_a_killed_one_comes_back_like_the_other(
    weaver, start_group, end_with_sidecars, tmp_path
):
    jobs = [start_group(number) for number in (0, 1)]
    await asyncio.gather(*(job.admit(weaver) for job in jobs))
    await eventually(lambda: train_together(jobs))
    first = await change(weaver, jobs, 1, lr=0.01, clip_norm=0.5)
    await asyncio.gather(*(job.pause_and_resume(weaver, 2) for job in jobs))

    end_with_sidecars(jobs[1].process)
    for rank in (0, 1):
        weaver.enrolment.release(f"g1-{rank}")
    await jobs[0].goes_on()
    again, ended = start_group(1), len(jobs[1].journal(0))
    again.hellos = jobs[1].hellos
    jobs[1] = again
    await again.admit(weaver)
    await eventually(lambda: len(again.journal(0)) > ended + 5 and train_together(jobs))
    second = await change(weaver, jobs, 3, lr=0.002)

    saves = [job.offer(weaver, 4, Checkpoint()) for job in jobs]
    acks = [ack for found in await asyncio.gather(*saves) for ack in found]
    assert {ack.status for ack in acks} == {"applied"}, acks
    saved = [path for path in tmp_path.glob("g*/checkpoint/step-*/.metadata")]
    assert len(saved) == 1  # by the first group of the quorum

    for step, lines in lines_at(jobs).items():
        assert len({line["lr"] for _, line in lines}) == 1, (step, lines)
        assert len({line["clip"] for _, line in lines}) == 1
        for rank in (0, 1):
            assert len({line["weights"] for own, line in lines if own == rank}) == 1, step
    found = lines_at(jobs)
    for step, rate in ((first, 0.01), (second, 0.002)):
        before, after = (found[number][0][1]["lr"] for number in (step, step + 1))
        assert abs(after / rate - 1) < 0.1 < abs(before / rate - 1)
    assert found[second][0][1]["clip"] == 0.5

    drains = await asyncio.gather(*(job.offer(weaver, 5, Drain(), groups=("g1",)) for job in jobs))
    assert {ack.status for acks in drains for ack in acks} == {"applied"}
    assert await jobs[1].end() == 0
    await jobs[0].goes_on(steps=5)


@pytest.mark.parametrize("method", ["diloco", "local_sgd"])
async def test_the_inner_steps_between_two_syncs_change_in_both_groups(weaver, start_group, method):
    jobs = [start_group(number, "--method", method) for number in (0, 1)]
    await asyncio.gather(*(job.admit(weaver) for job in jobs))
    await eventually(lambda: train_together(jobs))
    step = await change(weaver, jobs, 1, sync_every=2)
    await eventually(lambda: all(job.journal(0)[-1]["quorum_step"] > step + 3 for job in jobs))
    for job in jobs:
        rounds = [line["quorum_step"] for line in job.journal(0)]
        assert [rounds.count(number) for number in (step - 1, step, step + 1)] == [6, 2, 2]
    for rank in (0, 1):
        one, other = (
            {line["quorum_step"]: line["weights"] for line in reversed(job.journal(rank))}
            for job in jobs
        )  # of the first line of each, which is the sync's own
        assert all(one[number] == other[number] for number in one.keys() & other.keys() - {0})


async def test_without_a_weaver_a_group_has_the_losses_of_the_plain_trainer_to_the_bit(start_group):
    found = []
    for name, arguments in (("inert", ()), ("plain", ("--plain",))):
        job = start_group(0, "--steps", 6, *arguments, name=name, attached=False)
        assert await job.end() == 0
        found.append([job.by_step(rank) for rank in job.ranks])
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
