"""What a standby writes of a standby task stays within its own row."""

import io

import pytest
from rich.console import Console

from tests.pieces import note, take
from torchloom_core.capabilities.landscape import result as landscape_result
from torchloom_core.capabilities.preview import result as preview_result
from torchloom_core.live.trajectory.landscape import Landscape
from torchloom_core.live.trajectory.preview import Preview
from torchloom_core.wire.standby_task import End


@pytest.mark.parametrize(
    ("pieces", "table"), [(Preview(), preview_result.table), (Landscape(), landscape_result.table)]
)
def test_a_line_feed_begins_no_row(pieces, table):
    end = End(points=1, seconds=1.0, why="x\nverdict  better")
    take(pieces, note(end, kind=pieces.kind, points=1, of=1))
    out = io.StringIO()
    Console(file=out, width=100).print(table(pieces))
    assert out.getvalue().splitlines()[-1].rstrip().endswith(" in 1.0 s: x verdict better")
