"""``torchloom evaluate`` as a person types it."""

import json
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from msgspec.structs import replace

from tests.evaluate.scenes import HOUR_NS, NODES, START_NS, some_events, write
from torchloom_core.cli.app import app
from torchloom_core.errors import TorchloomError
from torchloom_core.evaluate.results import Report

CONFIG = """
[evaluate]
groups = 4
spares = 2
days = 0.5

[predictors.fault_history]
every_s = 3600.0
horizon_s = 21600.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "small.tltrace", some_events())
    (tmp_path / "torchloom.toml").write_text(CONFIG)
    return tmp_path


def evaluate(*words):
    """Run the command; return its exit status."""
    return app(
        ["evaluate", *words], exit_on_error=False, print_error=False, result_action="return_value"
    )


def problem(*words):
    """Return the one line that a mistake is answered with."""
    with pytest.raises(TorchloomError) as error:
        evaluate(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_policy_is_tested_and_the_report_is_written_as_table_json_and_page(folder, capsys):
    words = ("small.tltrace", "--policy", "failure_forecast", "--predictor", "fault_history")
    assert evaluate(*words, "--seeds", "2") == 0
    printed = capsys.readouterr().out
    assert "failure_forecast" in printed
    assert "small-evaluation/report.html" in printed
    report = json.loads((folder / "small-evaluation" / "report.json").read_bytes())
    assert report["simulation"]["seeds"] == [0, 1]
    assert any("fault_history" in arm["what"] for arm in report["simulation"]["arms"])
    page = (folder / "small-evaluation" / "report.html").read_text()
    assert "<html" in page
    assert not list((folder / "small-evaluation").rglob("*.part"))

    # Again, all is found: the same bytes.
    before = (folder / "small-evaluation" / "report.json").read_bytes()
    assert evaluate(*words, "--seeds", "2", "--json") == 0
    assert (folder / "small-evaluation" / "report.json").read_bytes() == before
    assert json.loads(capsys.readouterr().out) == json.loads(before)


def test_a_predictor_alone_is_scored_in_replay_and_nobody_acts_on_it(folder, capsys):
    words = ("--mode", "replay", "--predictor", "fault_history", "--resamples", "200")
    assert evaluate("small.tltrace", *words) == 0
    report = json.loads((folder / "small-evaluation" / "report.json").read_bytes())
    assert [score["predictor"] for score in report["forecasts"]] == ["fault_history"]
    assert report["policies"] == []


def test_what_cannot_be_evaluated_leaves_no_folder(folder):
    with pytest.raises(TorchloomError):
        evaluate("small.tltrace", "--policy", "nobody")
    assert not (folder / "small-evaluation").exists()


def test_replay_scores_the_predictor_and_counts_what_the_policy_proposed(folder, capsys):
    words = ("--mode", "replay", "--predictor", "fault_history", "--resamples", "200")
    words += ("--policy", "failure_forecast")
    assert evaluate("small.tltrace", *words, "--out", "there/it") == 0
    assert "AUPRC" in capsys.readouterr().out
    report = json.loads((folder / "there" / "it" / "report.json").read_bytes())
    assert [score["predictor"] for score in report["forecasts"]] == ["fault_history"]
    assert [policy["policy"] for policy in report["policies"]] == ["failure_forecast"]
    assert report["simulation"] is None


def test_forecasts_that_were_made_elsewhere_are_scored(folder, capsys):
    hours = range(1, 24 * 6)
    rows = [f"{START_NS + h * HOUR_NS},{node},0.{h % 9}" for h in hours for node in NODES]
    (folder / "mine.csv").write_text("\n".join(["t,component,score", *rows]))
    words = ("--mode", "replay", "--scores", "mine=mine.csv", "--resamples", "200")
    assert evaluate("small.tltrace", *words) == 0
    assert "mine" in capsys.readouterr().out


def test_a_report_says_what_it_takes_for_granted(folder):
    evaluate("small.tltrace", "--seeds", "1")
    report = json.loads((folder / "small-evaluation" / "report.json").read_bytes())
    said = " ".join(report["assumptions"])
    for text in ("made up, CC0-1.0", "4 groups of 1 x 8 GPUs", "Not modelled", "Daly's"):
        assert text in said
    assert Report.__struct_fields__ == tuple(report)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("none.tltrace", "none.tltrace: need a trace bundle, was nothing"),
        ("small.tltrace --policy stragler", "no policy has this name; did you mean straggler?"),
        ("small.tltrace --predictor fault_histry", "did you mean fault_history?"),
        ("small.tltrace --predictor fault_history=no.tlmodel", "no.tlmodel: need a model"),
        ("small.tltrace --predictor =a", "--predictor: need NAME or NAME=MODEL.tlmodel, was '=a'"),
        ("small.tltrace --scores mine", "--scores: need NAME=FILE, was 'mine'"),
        ("small.tltrace --scores mine=a.csv", "--scores: need --mode replay"),
        ("small.tltrace --mode replay --scores mine=a.csv", "a.csv: need a Parquet or CSV file"),
        ("small.tltrace --mode replay --until soon", "--until: need a date"),
        ("small.tltrace --config none.toml", "none.toml: cannot be read"),
        ("small.tltrace --out small.tltrace/manifest.json", "cannot be made"),
    ],
)
def test_a_mistake_is_answered_with_one_line(folder, words, text):
    assert text in problem(*words.split())


def test_a_job_that_is_too_large_for_the_trace_is_one_line(folder):
    (folder / "torchloom.toml").write_text("[evaluate]\ngroups = 64\n")
    assert "need 67 nodes for the job, its stand-bys and spares, was 8" in problem("small.tltrace")


def test_an_empty_trace_is_one_line(folder):
    write(folder / "empty.tltrace", [])
    events = folder / "small.tltrace" / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-30])
    assert "events.jsonl" in problem("small.tltrace")
    assert evaluate("empty.tltrace", "--seeds", "1") == 0


def test_an_interruption_keeps_what_is_finished_and_says_how_to_go_on(folder):
    """A real interrupt from the keyboard, as soon as two runs are on disk."""
    words = ("evaluate", "small.tltrace", "--policy", "failure_forecast", "--seeds", "20")
    command = [sys.executable, "-m", "torchloom_core.cli", *words]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    runs = folder / "small-evaluation" / "runs"
    while process.poll() is None and len(list(runs.glob("*.json"))) < 2:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    kept = len(list(runs.glob("*.json")))
    assert process.returncode == 130
    assert f"{kept} finished runs are kept in small-evaluation/runs" in said
    assert "Traceback" not in said
    assert not (folder / "small-evaluation" / "report.json").exists()


def test_a_trace_whose_faults_are_known_late_is_told_so(folder):
    late = [replace(one, t_avail=one.t_event + 10**12) for one in some_events(count=5)]
    write(folder / "late.tltrace", late)
    evaluate("late.tltrace", "--seeds", "1")
    report = json.loads((folder / "late-evaluation" / "report.json").read_bytes())
    assert any("5 failures were known only some time after" in s for s in report["assumptions"])
