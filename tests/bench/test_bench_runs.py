"""Each benchmark runs, as small as it gets, and reports its figures; no figure is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.long]
RUN = Path(__file__).parents[2] / "experiments" / "bench" / "run.py"


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("ingest", ["ingest"]),
        ("step", ["step", "step_tail"]),
        ("command", ["command"]),
        ("fence", ["fence", "threadlet"]),
        ("measuring", ["measuring"]),
        ("tick", ["tick"]),
        ("ack", ["ack"]),
        ("events", ["events"]),
        ("watched", ["watched"]),
        ("scale", ["memory", "linear"]),
        ("import", ["import_wide", "import_long"]),
    ],
)
def test_a_benchmark_reports_its_figures(name, figures, tmp_path):
    found, plot = tmp_path / "found.json", tmp_path / "plot.png"
    arguments = ["--only", name, "--repeats", "1", "--tiny", "--json", found, "--plot", plot]
    done = subprocess.run(
        [sys.executable, RUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(found.read_text())
    assert [figure["name"] for figure in reported["figures"]] == figures
    for figure in reported["figures"]:
        assert figure["ratio"] > 0
        assert figure["numbers"]
        assert figure["name"] in done.stdout
    assert reported["machine"]["cpu"]
    assert plot.stat().st_size > 0


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    done = subprocess.run(
        [sys.executable, RUN, "--only", "ingets"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ingest" in done.stderr
