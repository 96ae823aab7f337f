"""A wall clock that is set while a Weaver runs: it goes on by its own, and says so."""

import asyncio

import pytest

from torchloom_core.clock import SystemClock

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("ahead_s", "said"), [(3600.0, "+3600 s"), (-3600.0, "-3600 s")])
async def test_a_wall_clock_that_was_set_is_told(start_weaver, monkeypatch, caplog, ahead_s, said):
    monkeypatch.setattr(SystemClock, "wall_ahead_s", lambda _: ahead_s)
    await start_weaver("tick_s = 0.05")
    async with asyncio.timeout(60):
        while not (told := [m for m in caplog.messages if "wall clock" in m]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert told[0].startswith(f"the wall clock was set by {said} since this Weaver started")
