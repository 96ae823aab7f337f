"""The soak test of the fence, shortened; its judge detects violations."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "experiments" / "fence_soak" / "run.py"
CHANGES, SEED = 5, 24
"""A short script with a kill and a freeze of a trainer."""


@pytest.mark.long
@pytest.mark.integration
def test_changes_among_kills_and_freezes_land_on_all_ranks_or_nowhere(tmp_path):
    arguments = ["--changes", CHANGES, "--seed", SEED]
    done = subprocess.run(
        [sys.executable, RUN, *map(str, arguments), "--out", tmp_path, "--results", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    counts = json.loads((tmp_path / f"ddp-{SEED}.json").read_text())["counts"]
    assert counts["changes granted"] == CHANGES
    assert counts["changes done"] > 0
    assert counts["values of a step compared"] > 0
    assert counts["kill trainer"] > 0
