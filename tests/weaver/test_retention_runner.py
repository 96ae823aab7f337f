"""Retention frees a disk that is nearly full, in a process beside the Weaver."""

import asyncio
import shutil
from functools import partial

import pytest

from tests.small_disk import small_disk
from tests.trajectory.test_retention import record
from tests.waiting import until
from torchloom_core.config.trajectory import Trajectory
from torchloom_core.floor.first_done import end_all
from torchloom_core.live.trajectory.layout import part_paths
from torchloom_core.live.trajectory.tables import events, thinned_telemetry
from torchloom_core.live.weaver.retention_runner import RetentionRunner

pytestmark = pytest.mark.integration

MIB = 1 << 20


async def test_a_nearly_full_disk_is_thinned_until_there_is_room(tmp_path):
    with small_disk(tmp_path / "disk", 100) as disk:
        root = disk / "run"
        writer = record(root)
        lines = len(events(root))
        free = shutil.disk_usage(disk).free
        (disk / "fill").write_bytes(bytes(free - 5 * MIB + MIB // 8))
        rules = Trajectory(raw_h=1000, coarse_h=2000, low_gib=1)
        runner = RetentionRunner(root, rules)
        runner.hurry()
        running = asyncio.create_task(runner.run())
        has_room = partial(until, lambda: shutil.disk_usage(disk).free >= 5 * MIB)
        await asyncio.to_thread(has_room)
        await end_all(running)
        assert len(thinned_telemetry(root))
        assert part_paths(writer.folder, "telemetry"), "the newest part stays"
        assert len(events(root)) == lines
        assert not runner.take_news()
        writer.close()
