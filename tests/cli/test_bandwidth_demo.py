"""The report of the bandwidth demo matches the groups' step logs."""

import json
import math
from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.demos.bandwidth.phases import SCRIPT, SETTLE_STEPS, phases_of, quality_of_modes
from torchloom_core.demos.bandwidth.report import ArmFigures, Report, draw, show, summary_of
from torchloom_core.demos.folder import check_promises, write_summary
from torchloom_core.demos.steplog import StepLog
from torchloom_core.floor.errors import StateError
from torchloom_policies.allreduce.modes import QUALITY

GROUPS = ("g0", "g1", "g2")
SLOW = next(at for at, phase in enumerate(SCRIPT) if phase.mbit == 20.0)


def log(path, step_s, mode_of):
    """Return a group's step log with one step time and one mode per phase."""
    log, now, step = StepLog(path), 1000.0, 0
    for number, phase in enumerate(SCRIPT):
        end = now + phase.seconds
        while now + step_s[number] <= end:
            now += step_s[number]
            step += 1
            log.steps.append(
                {
                    "t": now,
                    "step": step,
                    "committed": True,
                    "participants": 3,
                    "loss": math.exp(-step / 200),
                    "duration_s": step_s[number],
                    "sent_bytes": 1000,
                    "knobs": {"compression": mode_of[number]},
                }
            )
        now = end
    return log


def began():
    edges = [1000.0]
    for phase in SCRIPT:
        edges.append(edges[-1] + phase.seconds)
    return edges


def arm(path, step_s, modes):
    logs = {group: log(path / group, step_s, modes) for group in GROUPS}
    return ArmFigures("an arm", "links", logs, began())


@pytest.fixture
def without(tmp_path):
    return arm(tmp_path, [0.1, 0.2, 1.0, 0.2], ["none"] * 4)


@pytest.fixture
def report(tmp_path, without):
    tuned = arm(tmp_path, [0.1, 0.12, 0.3, 0.12], ["none", "int8", "topk", "int8"])
    return Report(without, tuned)


def test_a_phase_is_measured_after_its_first_steps(without):
    log = without.log
    first = [row for row in log.steps if row["t"] <= without.began[1]]
    for row in first[:SETTLE_STEPS]:
        row["duration_s"] = 100.0
    first[0]["knobs"] = {"compression": "bf16"}
    figures = phases_of(log, without.began)[0]
    assert figures.step_s == 0.1
    assert figures.steps == len(first)
    assert figures.modes == ("none",)


def test_a_tuned_run_passes_all_checks(report):
    check_promises(report.promises())


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda rows: rows[50].update(committed=False), "failed steps: 1"),
        (lambda rows: rows[50].update(knobs={"compression": "topk"}), "two groups: 1"),
    ],
)
def test_a_failed_check_is_named(report, spoil, word):
    spoil(report.tuned.logs["g1"].steps)
    with pytest.raises(StateError, match=word):
        check_promises(report.promises())


def test_the_demo_uses_the_policys_default_quality():
    assert quality_of_modes() == QUALITY


def test_table_plot_and_summary_are_written(report, tmp_path):
    shown = StringIO()
    show(Console(file=shown, width=120), report)
    draw(tmp_path / "demo.png", report)
    write_summary(tmp_path, summary_of(report, seed=3))
    assert "20 Mbit/s, 20 s" in shown.getvalue()
    assert "topk" in shown.getvalue()
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["seed"] == 3
    assert summary["phases"]["tuned"][SLOW]["modes"] == ["topk"]
