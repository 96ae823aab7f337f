"""The scale experiment runs, as small as it gets, and a power law is fitted as it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "experiments" / "scale" / "run.py"


@pytest.mark.integration
@pytest.mark.slow
def test_every_size_is_watched_whole_and_drawn(tmp_path):
    found, plot = tmp_path / "found.json", tmp_path / "plot.png"
    arguments = ["--tiny", "--folder", tmp_path / "traces", "--json", found, "--plot", plot]
    done = subprocess.run(
        [sys.executable, RUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(found.read_text())
    assert [(row["nodes"], row["days"]) for row in rows] == [(4, 0.01), (8, 0.01), (8, 0.02)]
    assert [row["ticks"] for row in rows] == [57, 57, 115]
    assert all(row["cpu_s"] > 0 and row["peak_rss_mib"] > 0 for row in rows)
    assert "x days, within" in done.stdout
    assert plot.stat().st_size > 0
