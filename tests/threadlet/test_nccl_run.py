"""Two real torchft groups on a stand-in for NCCL, one of which is killed and comes back."""

import pytest

from tests.threadlet.test_communicators import SETTINGS
from tests.threadlet.test_hangs import lighthouse, start
from tests.waiting import eventually

pytestmark = pytest.mark.integration
__all__ = ["lighthouse", "start"]


@pytest.mark.parametrize("mode", ["none", "int8"])
async def test_a_group_killed_in_an_allreduce_on_nccl_frees_the_other_and_returns(start, mode):
    arguments = ("--nccl", mode, "--among", 2)
    survivor = start("g0", *arguments, **SETTINGS)
    # int8 has two collectives a step: in the second the other group waits for a part of the sum.
    killed = start("g1", *arguments, "--plant", "die", "--after", 6, **SETTINGS)
    assert await eventually(killed.process.poll) == -9
    [failed] = await survivor.until(lambda: survivor.failed)
    at = survivor.steps.index(failed)
    assert (failed["participants"], failed["weights"]) == (2, survivor.steps[at - 1]["weights"])

    alone = await survivor.trains_among(1, after=at)
    before = len(killed.steps)
    returned = start("g1", *arguments, **SETTINGS)
    first = await returned.trains_among(2, after=before)
    assert first["step"] > alone["step"]
    last = first["step"] + 5
    for group in (survivor, returned):
        await group.until(lambda group=group: group.steps[-1]["step"] >= last)
    here, there = (
        {line["step"]: line["weights"] for line in lines if first["step"] <= line["step"] <= last}
        for lines in (survivor.steps[at:], returned.steps[before:])
    )
    assert len(here) == 6
    assert here == there
    assert survivor.failed == [failed]
