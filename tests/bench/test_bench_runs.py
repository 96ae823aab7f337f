"""Each benchmark runs, as small as it gets, and reports its figures; no figure is judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slow]
RUN = Path(__file__).parents[2] / "experiments" / "bench" / "run.py"


FIGURES = [
    *("ingest", "step", "step_tail", "command", "fence", "threadlet", "measuring", "tick", "ack"),
    *("events", "watched", "memory", "linear", "import_wide", "import_long"),
]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Everything once, in one process: to start it takes longer than to measure most of it."""
    folder = tmp_path_factory.mktemp("bench")
    arguments = ["--repeats", "1", "--tiny", "--json", folder / "found.json"]
    done = subprocess.run(
        [sys.executable, RUN, *arguments, "--plot", folder / "plot.png"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_all_benchmarks_report_their_figures_in_order(played):
    folder, _ = played
    reported = json.loads((folder / "found.json").read_text())
    assert [figure["name"] for figure in reported["figures"]] == FIGURES
    assert reported["machine"]["cpu"]
    assert (folder / "plot.png").stat().st_size > 0


@pytest.mark.parametrize("name", FIGURES)
def test_a_benchmark_reports_its_figure(played, name):
    folder, printed = played
    figures = json.loads((folder / "found.json").read_text())["figures"]
    (figure,) = [figure for figure in figures if figure["name"] == name]
    assert figure["ratio"] > 0
    assert figure["numbers"]
    assert name in printed


def test_an_unknown_benchmark_is_refused_with_the_known_ones():
    done = subprocess.run(
        [sys.executable, RUN, "--only", "ingets"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ingest" in done.stderr
