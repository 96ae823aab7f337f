"""A wall clock that is set while a Weaver runs is ignored and logged."""

import pytest

from torchloom_core.floor.clock import SystemClock

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("ahead_s", "shown"), [(3600.0, "+3600 s"), (-3600.0, "-3600 s")])
async def test_a_change_of_the_wall_clock_is_logged(
    start_weaver, monkeypatch, logged, ahead_s, shown
):
    monkeypatch.setattr(SystemClock, "wall_ahead_s", lambda _: ahead_s)
    await start_weaver("tick_s = 0.05")
    lines = await logged.eventually(lambda lines: any("wall clock" in line for line in lines))
    line = next(line for line in lines if "wall clock" in line)
    assert line.startswith(f"the wall clock was set by {shown} since this Weaver started")
