"""A wall clock that is set while a Weaver runs: it goes on by its own, and says so."""

import pytest

from torchloom_core.clock import SystemClock

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("ahead_s", "said"), [(3600.0, "+3600 s"), (-3600.0, "-3600 s")])
async def test_a_change_of_the_wall_clock_is_logged(
    start_weaver, monkeypatch, logged, ahead_s, said
):
    monkeypatch.setattr(SystemClock, "wall_ahead_s", lambda _: ahead_s)
    await start_weaver("tick_s = 0.05")
    lines = await logged.eventually(lambda lines: any("wall clock" in line for line in lines))
    told = next(line for line in lines if "wall clock" in line)
    assert told.startswith(f"the wall clock was set by {said} since this Weaver started")
