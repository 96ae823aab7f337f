"""The experiment on intervals: its fleets, its scores that know nothing, and its verdict."""

import json
from dataclasses import replace

import pytest

from experiments.score_intervals import run
from experiments.score_intervals.fleet import SETTINGS

SMALL = tuple(
    replace(setting, nodes=20, days=80, learned_d=30, rate=0.02) for setting in SETTINGS[:1]
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "SETTINGS", SMALL)


@pytest.mark.usefixtures("small")
def test_both_tables_are_printed_and_written_down(tmp_path, capsys):
    run.main(["--draws", "2", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "95 % intervals with the true value" in printed
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert set(result["held"]) <= set(run.FIGURES)
    assert result["skilled"]["noise"][1] == 2
    assert (tmp_path / "coverage.png").stat().st_size > 1_000
