"""``torchloom evaluate A.tltrace B.tltrace``: one study, in which each trace is a fleet."""

import json
import re
import shutil

import pytest

from tests.evaluate.episodes import DAY_NS, START_NS, TORCHLOOM_TOML, event, some_events, write
from tests.evaluate.test_evaluate_command import evaluate, problem
from torchloom_core.lab.trace.bundle.schema import Component
from torchloom_core.lab.trace.bundle.writer import BundleWriter

pytestmark = pytest.mark.slow

REPLAY = ("--mode", "replay", "--predictor", "fault_history")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("abc"):
        write(tmp_path / f"{name}.tltrace", some_events(seed=number, count=30 + 10 * number))
    (tmp_path / "torchloom.toml").write_text(TORCHLOOM_TOML)
    return tmp_path


def reported(folder, name):
    return json.loads((folder / f"{name}-evaluation" / "report.json").read_bytes())


def test_forecasts_are_scored_on_each_trace_and_over_fleets(folder, capsys):
    assert evaluate("a.tltrace", "b.tltrace", "c.tltrace", *REPLAY) == 0
    report = reported(folder, "a+2")
    assert report["version"] == 2
    assert [one["trace"]["name"] for one in report["traces"]] == ["a", "b", "c"]
    fleets = report["fleets"]
    (over,) = fleets["forecasts"]
    each = [one["forecasts"][0]["auprc"]["value"] for one in report["traces"]]
    assert over["auprc"]["value"] == pytest.approx(sum(each) / 3)
    assert over["auprc"]["low"] < over["auprc"]["value"] < over["auprc"]["high"]
    assert over["pooled"]["incidents"] == sum(
        one["forecasts"][0]["incidents"] for one in report["traces"]
    )
    printed = capsys.readouterr().out
    assert "mean over fleets" in printed
    assert "fault_history, over 3 traces: AUPRC" in printed
    page = (folder / "a+2-evaluation" / "report.html").read_text()
    for name in "abc":
        assert f"{name}: findings" in page
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert len(sections) == len(set(sections))
    assert set(re.findall(r'<a href="#([^"]+)"', page)) == {*sections, "fleets"}


def test_each_trace_of_several_has_the_figures_that_it_has_alone(folder):
    evaluate("b.tltrace", *REPLAY)
    evaluate("a.tltrace", "b.tltrace", *REPLAY)
    (alone,) = reported(folder, "b")["traces"]
    assert reported(folder, "a+1")["traces"][1] == alone
    assert "fleets" not in reported(folder, "b")


def test_a_time_since_the_start_is_each_traces_own(folder):
    evaluate("a.tltrace", "b.tltrace", *REPLAY, "--until", "4d")
    for one in reported(folder, "a+1")["traces"]:
        assert one["forecasts"][0]["from_ns"] >= START_NS + 4 * DAY_NS


def test_traces_with_equal_names_are_named_by_their_path(folder):
    (folder / "other").mkdir()
    write(folder / "other" / "a.tltrace", some_events(seed=7))
    evaluate("a.tltrace", "other/a.tltrace", *REPLAY)
    names = [one["trace"]["name"] for one in reported(folder, "a+1")["traces"]]
    assert names == ["a.tltrace", "other/a.tltrace"]


def test_the_same_trace_twice_is_refused_whatever_it_is_called(folder):
    message = "{}: need different traces, was identical in content to a.tltrace"
    assert problem("a.tltrace", "a.tltrace", *REPLAY) == message.format("a.tltrace")
    shutil.copytree("a.tltrace", "copy.tltrace")
    manifest = json.loads((folder / "copy.tltrace" / "manifest.json").read_bytes())
    (folder / "copy.tltrace" / "manifest.json").write_text(json.dumps({**manifest, "name": "new"}))
    assert problem("b.tltrace", "a.tltrace", "copy.tltrace", *REPLAY) == message.format(
        "copy.tltrace"
    )


def test_traces_of_other_things_do_not_go_together(folder):
    with BundleWriter(
        folder / "disks.tltrace", name="disks", start_ns=START_NS, end_ns=START_NS + 6 * DAY_NS,
        source="made up", licence="CC0-1.0", synthetic=True,
    ) as writer:  # fmt: skip
        writer.add(Component(id="d1", kind="disk"))
        writer.add(event(1, 3.0, "d1"))
    assert problem("a.tltrace", "disks.tltrace", *REPLAY) == (
        "disks.tltrace: need nodes as watched components, as in a.tltrace, was disks"
    )


def test_a_metric_that_only_one_trace_has_is_refused_where_a_predictor_needs_it(folder):
    write(folder / "hot.tltrace", some_events(seed=8), metrics=("heat",))
    (folder / "torchloom.toml").write_text(
        TORCHLOOM_TOML + "[predictors.trend]\nmetric = 'heat'\nlevel = 90.0\nhorizon_s = 21600.0\n"
    )
    words = ("--mode", "replay", "--predictor", "trend")
    assert problem("hot.tltrace", "a.tltrace", *words) == (
        "a.tltrace: need heat, which predictor trend reads and hot.tltrace has, was none"
    )


def test_policies_are_compared_on_each_trace_and_over_fleets(folder, capsys):
    words = ("--policy", "failure_forecast", "--predictor", "fault_history", "--no-sensitivity")
    assert evaluate("a.tltrace", "b.tltrace", *words, "--seeds", "1") == 0
    report = reported(folder, "a+1")
    goodput = report["fleets"]["goodput"]
    (mine,) = (arm for arm in goodput["arms"] if arm["kind"] == "candidate")
    gains = []
    for one in report["traces"]:
        of = {arm["name"]: arm["goodput"]["value"] for arm in one["simulation"]["arms"]}
        gains.append(of["failure_forecast"] - of[goodput["reference"]])
    assert mine["over_reference"] == pytest.approx(gains)
    assert mine["versus_reference"]["value"] == pytest.approx(sum(gains) / 2)
    printed = capsys.readouterr().out
    assert "Goodput over 2 traces, gains in points" in printed
    assert "failure_forecast, over 2 traces:" in " ".join(printed.split())


def test_what_one_trace_cannot_give_is_refused_before_any_is_played(folder):
    with BundleWriter(
        folder / "few.tltrace", name="few", start_ns=START_NS, end_ns=START_NS + 6 * DAY_NS,
        source="made up", licence="CC0-1.0", synthetic=True,
    ) as writer:  # fmt: skip
        writer.add(Component(id="n0", kind="node"))
        writer.add(event(1, 3.0, "n0"))
    words = ("--policy", "failure_forecast", "--predictor", "fault_history", "--days", "6.5")
    assert problem("a.tltrace", "few.tltrace", *words).startswith("--days: need at most 6 days")
    message = problem("a.tltrace", "few.tltrace", *words[:-2])
    assert "few.tltrace: need 7 nodes for the job, its standbys and spares, was 1" in message
    assert not (folder / "a+1-evaluation" / "runs").exists()
