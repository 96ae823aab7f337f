"""The chaos of ``experiments/chaos``, shortened: twelve kills, and nothing of our making."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "experiments" / "chaos" / "run.py"
SHORT = ("--kills", "12", "--seed", "106")


@pytest.mark.integration
@pytest.mark.long
def test_twelve_kills_of_everything_lose_double_and_break_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, RUN, *SHORT, "--out", tmp_path, "--results", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    total = json.loads((tmp_path / "results.json").read_text())["total"]
    assert total["kills"] + total.get("omitted", 0) >= 12
    assert total["commands applied"] > 0
    assert (tmp_path / "chaos.png").stat().st_size > 0
