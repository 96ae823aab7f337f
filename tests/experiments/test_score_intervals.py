"""The experiment on intervals: its fleets, its scores that know nothing, and its verdict."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.score_intervals import run
from experiments.score_intervals.fleet import SETTINGS, draw

SMALL = tuple(
    replace(setting, nodes=20, days=80, learned_d=30, rate=0.02) for setting in SETTINGS[:1]
)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(run, "SETTINGS", SMALL)


def test_a_draw_is_the_same_for_a_seed_and_another_for_another():
    one, same, other = (draw(SMALL[0], seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.outcome, same.outcome)
    assert not np.array_equal(one.starts, other.starts)


def test_the_time_to_set_thresholds_on_ends_a_horizon_before_what_is_scored():
    earlier, later = draw(SMALL[0], 1).judged(np.zeros((80, 20)))
    apart_ns = later.times_ns[0] - earlier.times_ns[-1]
    assert apart_ns > earlier.task.horizon_ns


def test_what_knows_nothing_has_the_shape_of_the_fleet_and_is_known_by_name():
    said = run.knowing_nothing(draw(SMALL[0], 1), np.random.default_rng(0))
    assert {scores.shape for scores in said.values()} == {(80, 20)}
    assert (said["the day's number"] == said["the day's number"][:, :1]).all()


@pytest.mark.usefixtures("small")
def test_both_tables_are_printed_and_written_down(tmp_path, capsys):
    run.main(["--draws", "2", "--out", str(tmp_path)])
    told = capsys.readouterr().out
    assert "intervals of 95 % that hold the truth" in told
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert set(result["held"]) <= set(run.FIGURES)
    assert result["skilled"]["noise"][1] == 2
    assert (tmp_path / "coverage.png").stat().st_size > 1_000


def test_intervals_that_hold_too_seldom_and_skill_that_is_none_do_not_hold(capsys):
    console = run.Console()
    result = {"setting": "s", "held": {"AUPRC": [95, 100]}, "skilled": {"noise": [5, 100]}}
    assert run.show([result], console)
    assert not run.show([{**result, "held": {"AUPRC": [91, 100]}}], console)
    assert not run.show([{**result, "held": {"AUPRC": [99, 100]}}], console)
    assert not run.show([{**result, "skilled": {"noise": [6, 100]}}], console)
    assert "does not hold" in capsys.readouterr().out
