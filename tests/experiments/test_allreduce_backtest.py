"""The backtest of a lab run: what is predicted from its results, and how it is ranked."""

import json
import math
from dataclasses import asdict

import pytest

from experiments.allreduce import backtest, judge
from experiments.allreduce.arm import TUNER, Played
from experiments.allreduce.schedule import steps
from torchloom_core.config.loading import load

RANKS = 4
PLANNED = steps((None, 200.0, 50.0), (20.0, 30.0, 40.0), RANKS)
SENT = {"none": 43.2e6, "int8": 11.0e6, "topk": 1.3e6}
BESIDE_S = {"none": (0.21, 0.0), "int8": (0.24, 0.02), "topk": (0.27, 0.06)}
USE = {"none": 1.0, "int8": 0.72, "topk": 1.0}
QUALITY = {"none": 1.0, "int8": 1.0, "topk": 0.6}
MBIT = (10_000.0, 200.0, 50.0)


def step_s(mode, phase):
    return BESIDE_S[mode][0] + SENT[mode] / USE[mode] / (MBIT[phase] * 125_000)


def results(**more):
    """Return what run.py writes of a lab in which the model is right."""
    progress = {
        mode: sum(
            QUALITY[mode] * (phase.end_s - phase.start_s) / step_s(mode, number)
            for number, phase in enumerate(PLANNED)
        )
        for mode in SENT
    }
    progress[TUNER] = 1.2 * max(progress.values())
    return {
        "schedule": [asdict(phase) for phase in PLANNED],
        "quality": QUALITY,
        "steps": [
            asdict(judge.Phased(mode, number, phase.name, step_s(mode, number), 30, mode))
            for mode in SENT
            for number, phase in enumerate(PLANNED)
        ]
        + [asdict(judge.Phased("int8", 0, "unshaped", math.nan, 0, ""))],
        "costs": [asdict(judge.Cost(mode, *BESIDE_S[mode], SENT[mode])) for mode in SENT],
        "trials": [
            {"arm": arm, "seed": seed, "marks": [[90.0, 4.0 - made / 1000 + 0.001 * seed]]}
            for arm, made in progress.items()
            for seed in (1, 2)
        ],
        **more,
    }


@pytest.fixture
def path(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results()))
    return tmp_path / "results.json"


def test_the_config_has_the_workload_that_the_lab_has_measured(path, tmp_path):
    config = tmp_path / "lab.toml"
    config.write_text(backtest.config_of(backtest.read(path)))
    job = load(config, {}).evaluate.allreduce
    assert job.gradient_bytes == 28_800_000
    assert job.compute_s == pytest.approx(0.21)
    assert job.modes["none"].compress_s == pytest.approx(0.0)
    assert {name: mode.link_use for name, mode in job.modes.items()} == USE
    assert job.modes["int8"].compress_s == pytest.approx(0.03)
    assert job.modes["topk"].sent == pytest.approx(1.3 / 43.2)
    assert job.modes["topk"].quality == 0.6


def test_steps_of_a_lab_in_which_the_model_is_right_are_foretold(path, tmp_path):
    measured = backtest.read(path)
    config = tmp_path / "lab.toml"
    config.write_text(backtest.config_of(measured))
    rows = backtest.compared(measured, config)
    assert len(rows) == 9
    assert [row.off for row in rows] == pytest.approx([0.0] * 9, abs=1e-6)
    assert rows[2].predicted_s == pytest.approx(0.21 + 43.2 * 8 / 50)


@pytest.mark.integration
def test_both_rankings_are_printed_side_by_side_and_agree(path, tmp_path, capsys):
    assert backtest.main([str(path), "--seeds", "1", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "Kendall's tau: 1.00 of the static modes, 1.00 of all arms" in said
    assert "of the 6 pairs that the seeds tell apart 6 are ranked alike" in said
    first = next(line for line in said.splitlines() if "tuner" in line)
    assert first.count(TUNER) == 2
    assert "0% off, 0% at the most" in said


def test_arms_are_told_apart_by_what_all_seeds_say_and_not_by_their_means():
    ends = {"none": [1.0, 1.1, 1.2], "int8": [1.5, 1.61, 1.7], "topk": [1.1, 1.0, 1.6]}
    assert backtest.told_apart(ends) == [("none", "int8")]
    assert backtest.told_apart({"none": [1.0], "int8": [2.0]}) == []


def test_a_ranking_that_differs_is_told_by_its_tau():
    progress = {"none": 1.0, "int8": 2.0, "topk": 3.0}
    assert backtest.tau({"none": 3.0, "int8": 2.0, "topk": 1.0}, progress) == 1.0
    assert backtest.tau({"none": 1.0, "int8": 2.0, "topk": 3.0}, progress) == -1.0
    assert backtest.tau({"none": 3.0, "int8": 1.0, "topk": 2.0}, progress) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"costs": []}, "need the arm none"),
        ({"costs": [{"mode": "none"}]}, "need what run.py writes"),
        pytest.param(
            {"quality": {"topk": 0.0}},
            "topk.quality: need a number > 0",
            marks=pytest.mark.integration,
        ),
    ],
)
def test_results_of_no_use_are_told_in_one_line(tmp_path, capsys, more, told):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results(**more)))
    assert backtest.main([str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


def test_results_that_are_not_there_or_too_old_are_told_in_one_line(tmp_path, capsys):
    assert backtest.main([str(tmp_path / "none.json")]) == 2
    old = results()
    del old["costs"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert backtest.main([str(tmp_path / "old.json")]) == 2
    absent, outdated = capsys.readouterr().err.splitlines()
    assert absent.endswith("none.json: No such file or directory")
    assert outdated.endswith("need 'costs' in what run.py writes")


def test_what_a_step_costs_beside_the_wire_is_told_by_the_rank_that_waits_there_the_least():
    def rank(wire_s, compress_s):
        said = {"event": "step", "step_time": 1.0, "bytes": 5.0, "mode": "none"}
        return [{**said, "step": step, "wire": wire_s, "compress": compress_s} for step in range(3)]

    trials = [Played("none", 1, [rank(0.4, 0.1), rank(0.3, 0.2), rank(0.6, 0.1)], [0.0])]
    trials.append(Played(TUNER, 1, [rank(0.1, 0.1)], [0.0]))
    assert judge.costs(trials) == [judge.Cost("none", pytest.approx(0.7), 0.1, 5.0)]
