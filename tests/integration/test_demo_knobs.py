"""The demo of the knobs, at twice its pace: changes under a kill and a rollback, on real groups."""

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from torchloom_core.cli.app import app
from torchloom_core.demos.knobs.play import play_knobs
from torchloom_core.demos.knobs.script import SCRIPT, TRAINING
from torchloom_core.live.trajectory.layout import run_folder

pytestmark = [pytest.mark.integration, pytest.mark.long]

QUICK = replace(TRAINING, seed=7, step_ms=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown():
    return StringIO()


@pytest.fixture(scope="module")
def report(folder, shown):
    """The report of the demo, played to its end."""
    return play_knobs(QUICK, folder, Console(file=shown, width=100))


def test_all_output_is_shown(report):
    assert all(report.promises().values())
    assert [change.by for change in report.changes] == ["operator"] * 5 + ["guard", "operator"]


def test_each_surviving_group_applied_the_change_at_the_step_the_weaver_reports(report, shown):
    for change, landing in zip(report.changes, report.landings, strict=True):
        (step,) = set(landing.last_without.values())
        assert change.result == "done"
        assert re.search(rf" at step {step}[;\n]", shown.getvalue())


def test_the_group_that_was_killed_comes_back_with_all_knobs_before_its_first_step(report):
    rows = [row for row in report.logs["g1"].steps if row["t"] > report.killed_at]
    wanted = {knob: value for change in SCRIPT[:4] for knob, value in change.values.items()}
    assert wanted.items() <= rows[0]["knobs"].items()
    assert rows[0]["committed"]


def test_its_trajectory_is_decided_again_to_the_bit(report, folder, capsys):
    root = run_folder(folder / "run" / "state", "demo")
    assert app(["trajectory", "replay", str(root), "--json"], result_action="return_value") == 0
    assert json.loads(capsys.readouterr().out)["difference"] is None
