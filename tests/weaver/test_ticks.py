"""The Weaver's ticks."""

import pytest

from tests.waiting import eventually
from torchloom_core.live.trajectory.layout import run_folder
from torchloom_core.live.trajectory.reader import read_epochs
from torchloom_core.live.transport.lease import Lease

pytestmark = pytest.mark.integration


async def test_a_weaver_that_is_not_sure_of_its_lease_decides_nothing(
    start_weaver, tmp_path, monkeypatch
):
    def ticks():
        (record,) = read_epochs(run_folder(tmp_path, "run"))
        return sum(line.kind == "tick" for line in record.lines())

    looks = []
    await start_weaver("tick_s = 0.02")
    await eventually(ticks)
    monkeypatch.setattr(Lease, "is_sure", property(lambda self: looks.append(self)))
    await eventually(lambda: len(looks) > 1)
    before = ticks()
    await eventually(lambda: len(looks) > 10)
    assert ticks() == before
