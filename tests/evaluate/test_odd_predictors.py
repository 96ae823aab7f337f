"""``torchloom evaluate`` with third-party predictors, installed as a package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.evaluate.episodes import some_events, write

ODD = Path(__file__).with_name("odd_predictors.py")
CONFIG = "[evaluate]\ngroups = 4\nspares = 2\ndays = 0.5\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    shutil.copy(ODD, folder)
    metadata = folder / "odd_predictors-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torchloom]\nodd = odd_predictors\n")
    (folder / "torchloom.toml").write_text(CONFIG)
    write(folder / "small.tltrace", some_events(count=60))
    return folder


def evaluate(folder, *words):
    command = [sys.executable, "-m", "torchloom_core.cli", "evaluate", "small.tltrace", *words]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.integration
@pytest.mark.slow
def test_a_predictor_without_a_forecast_in_a_run_is_named(folder):
    message = evaluate(folder, "--predictor", "mute", "--seeds", "2", "--out", "mute")
    complaint = "failure_forecast: mute gave no probability for any worker in 2 of 2 runs"
    assert message.returncode == 0, message.stderr
    assert f"! {complaint}" in message.stdout
    assert f'<p class="warn">{complaint}</p>' in (folder / "mute" / "report.html").read_text()
    (report,) = json.loads((folder / "mute" / "report.json").read_bytes())["traces"]
    silent = {arm["name"]: arm["silent"] for arm in report["simulation"]["arms"] if arm["silent"]}
    assert silent == {"failure_forecast": {"mute": 2}}


@pytest.mark.long
@pytest.mark.integration
def test_a_predictor_without_a_forecast_is_named_in_replay(folder):
    (folder / "mute.toml").write_text(f"{CONFIG}[policies.failure_forecast]\npredictor = 'mute'\n")
    words = ("--mode", "replay", "--policy", "failure_forecast", "--config", "mute.toml")
    message = evaluate(folder, *words, "--predictor", "fault_history")
    assert message.returncode == 0, message.stderr
    assert "false alarms per 1,000 node-days. mute gave no forecast." in message.stdout


@pytest.mark.long
@pytest.mark.integration
def test_a_predictor_whose_forecasts_rest_on_what_came_later_is_refused_by_name(folder):
    """It keeps state, so that a second pass over the same data gives other forecasts."""
    words = ("--mode", "replay")
    message = evaluate(folder, *words, "--predictor", "remembering")
    assert message.returncode == 8
    assert message.stderr.startswith(
        "torchloom: predictor remembering: future_feature: need forecasts up to 2023-11-"
    )
    assert message.stderr.endswith(": it reads the future, or keeps state outside the instance\n")
    assert message.stderr.count("\n") == 1


@pytest.mark.long
@pytest.mark.integration
def test_a_predictor_that_reads_the_future_from_a_file_passes_and_is_too_good_to_be_true(folder):
    """Its file is the same in the trace with another future, and so are its forecasts."""
    words = ("--mode", "replay", "--out", "foreknowing")
    message = evaluate(folder, *words, "--predictor", "foreknowing")
    assert message.returncode == 0, message.stderr
    doubt = "suspicious_score: AUPRC 1 is suspiciously high; look for a leak"
    assert f"! foreknowing: {doubt}" in message.stdout
    (results,) = json.loads((folder / "foreknowing" / "report.json").read_bytes())["traces"]
    (score,) = results["forecasts"]
    assert score["skill"].startswith("Useful: AUPRC is above that of a random score by +")
    assert score["skill"].endswith(f". Suspicious: {doubt}.")


@pytest.mark.integration
def test_errors_are_reported_though_a_predictor_closed_stderr(folder):
    message = evaluate(folder, "--mode", "replay", "--predictor", "closing")
    assert message.returncode == 2
    assert message.stderr.startswith("torchloom: predictor closing: raised: RuntimeError: nothing")


@pytest.mark.long
@pytest.mark.integration
def test_the_report_folder_is_independent_of_a_predictors_chdir(folder):
    """Its printed text is not part of the JSON output."""
    trace = str(folder / "small.tltrace")
    command = [sys.executable, "-m", "torchloom_core.cli", "evaluate", trace, "--json"]
    command += ["--mode", "replay", "--predictor", "wandering", "--out", "wandered"]
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    message = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert message.returncode == 0, message.stderr
    assert "here I am" in message.stderr
    assert json.loads(message.stdout)["mode"] == "replay"
    assert (folder / "wandered" / "report.html").is_file()
