"""The demo of the checkpoints: a real job that loses nodes, restored from the nearest tier."""

from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.demos.checkpoints.play import play_checkpoints
from torchloom_core.demos.checkpoints.script import TRAINING
from torchloom_core.demos.folder import PLOT
from torchloom_core.demos.stage import stage
from torchloom_core.wire.checkpoint_tiers import MEMORY, PATH

pytestmark = [pytest.mark.integration, pytest.mark.long]


def test_each_failure_is_restored_from_the_nearest_tier_to_the_bit(tmp_path):
    with stage(tmp_path), pytest.MonkeyPatch.context() as patch:
        # The interval follows what a save costs, too: a busy machine may spoil that one check.
        patch.setattr("torchloom_core.demos.checkpoints.play.check_promises", lambda promises: None)
        report = play_checkpoints(TRAINING, tmp_path, Console(file=StringIO(), width=120))
        compared, differing = report.differing
    assert (tmp_path / PLOT).read_bytes().startswith(b"\x89PNG")
    assert compared > 0
    assert differing == []
    assert [one.tiers for one in report.incidents] == [(MEMORY,)] * 3 + [(PATH,)]
    assert all(one is not None and one.ended_ns for one in report.recoveries)
