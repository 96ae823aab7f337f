"""Each benchmark runs, as small as it gets, and reports its figures; no figure is judged."""

import json

import pytest

from tests.scripts import run_script

pytestmark = [pytest.mark.integration, pytest.mark.slow]
FIGURES = [
    *(
        "ingest",
        "bytes",
        "bytes_noise",
        "step",
        "step_tail",
        "command",
        "fence",
        "threadlet",
        "measuring",
        "tick",
        "ack",
        "herd",
    ),
    *("events", "watched", "memory", "linear", "import_wide", "import_long"),
]


def test_all_benchmarks_report_their_figures_in_order(tmp_path):
    """Everything once, in one process: to start it takes longer than to measure most of it."""
    words = ("--json", tmp_path / "found.json", "--plot", tmp_path / "plot.png")
    printed = run_script("bench/run.py", "--repeats", 1, "--tiny", *words)
    reported = json.loads((tmp_path / "found.json").read_text())
    assert [figure["name"] for figure in reported["figures"]] == FIGURES
    for figure in reported["figures"]:
        assert figure["ratio"] > 0
        assert figure["numbers"]
        assert figure["name"] in printed
    assert reported["machine"]["cpu"]
    assert (tmp_path / "plot.png").stat().st_size > 0
