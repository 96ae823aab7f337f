"""The backtest of a lab run: what is predicted from its results, and how it is ranked."""

import json
import math
from dataclasses import asdict

import pytest

from experiments.allreduce import backtest, judge
from experiments.allreduce.arm import TUNER
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


def test_steps_of_a_lab_that_follows_the_model_are_predicted(path, tmp_path):
    measured = backtest.read(path)
    config = tmp_path / "lab.toml"
    config.write_text(backtest.config_of(measured))
    rows = backtest.compared(measured, config)
    assert len(rows) == 9
    assert [row.off for row in rows] == pytest.approx([0.0] * 9, abs=1e-6)
    assert rows[2].predicted_s == pytest.approx(0.21 + 43.2 * 8 / 50)


@pytest.mark.long
@pytest.mark.integration
def test_both_rankings_are_printed_side_by_side_and_agree(path, tmp_path, capsys):
    assert backtest.main([str(path), "--seeds", "1", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Kendall's tau: 1.00 of the static modes, 1.00 of all arms" in printed
    assert "of the 6 pairs that the seeds distinguish 6 are ranked alike" in printed
    first = next(line for line in printed.splitlines() if "tuner" in line)
    assert first.count(TUNER) == 2
    assert "0% off, 0% at the most" in printed
