"""The newest report beside the config is what a run's policies are held against."""

import json
import os

import msgspec
import pytest

from torchloom_core.floor.errors import DashboardError
from torchloom_core.lab.evaluate.results import (
    REPORT_VERSION,
    ArmSummary,
    BreakEven,
    Interval,
    Report,
    Simulation,
    TraceResults,
)
from torchloom_core.live.dashboard.backtest import VERSION, Backtest

POLICIES = {"mover": {"patience": 3, "mode": "shadow"}, "other": {}}


def arm(name, kind="candidate", gain=None):
    value = Interval(value=0.5)
    return ArmSummary(
        name=name,
        kind=kind,
        what=name,
        needs_forecast=False,
        goodput=value,
        ettr=value,
        versus_without=gain,
        decisions=2.0,
        moves=4.0,
        right_moves=3.0,
    )


def write(folder, options, written_s=1000.0):
    """Write a report as ``torchloom evaluate`` does, and return its path."""
    gain = Interval(value=0.02, low=0.01, high=0.03)
    simulation = Simulation(
        job={},
        seeds=(1, 2),
        reference="daly",
        oracle="oracle",
        horizon_s=60.0,
        arms=(arm("daly", "baseline"), arm("mover", gain=gain)),
        runs=(),
        break_even=BreakEven(precision=0.5, loss_gpu_s=1.0, price_gpu_s=1.0, last_price_gpu_s=1.0),
    )
    results = TraceResults(
        trace={"name": "small"},
        config={"arms": {"mover": {"policies": {"mover": options}, "predictors": {}}}},
        assumptions=(),
        simulation=simulation,
    )
    folder.mkdir()
    path = folder / "report.json"
    path.write_bytes(msgspec.json.encode(Report(mode="simulate", traces=(results,))))
    os.utime(path, (written_s, written_s))
    return path


def test_reports_are_read_as_they_are_written():
    assert VERSION == REPORT_VERSION


@pytest.mark.parametrize(("patience", "same"), [(3, True), (4, False)])
def test_the_expected_gain_of_each_candidate_is_shown(tmp_path, patience, same):
    path = write(tmp_path / "small-evaluation", {"patience": patience})
    update = Backtest(None, tmp_path, POLICIES).shown()
    assert (update["path"], update["at_s"]) == (str(path), 1000.0)
    assert update["expectations"] == [
        {
            "arm": "mover",
            "trace": "small",
            "policies": ["mover"],
            "gain": [0.02, 0.01, 0.03],
            "unit": "goodput",
            "seeds": 2,
            "decisions": 2.0,
            "moves": 4.0,
            "right_moves": 3.0,
            "same": same,
        }
    ]


def test_the_newest_one_is_shown_also_if_it_comes_later(tmp_path):
    backtest = Backtest(None, tmp_path, POLICIES)
    assert backtest.shown() == {}
    write(tmp_path / "b-evaluation", {}, 2000.0)
    write(tmp_path / "a-evaluation", {}, 1000.0)
    assert "b-evaluation" in backtest.shown()["path"]
    write(tmp_path / "c-evaluation", {}, 3000.0)
    assert "c-evaluation" in backtest.shown()["path"]


def test_a_report_that_is_given_comes_before_all_others(tmp_path):
    given = write(tmp_path / "given", {}, 1000.0)
    write(tmp_path / "newer-evaluation", {}, 2000.0)
    for path in (given, given.parent):
        assert Backtest(path, tmp_path, POLICIES).shown()["path"] == str(given)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (None, "need a report.json: No such file"),
        ("{", "need a report of torchloom evaluate: "),
        ("[]", "need a report of torchloom evaluate: "),
        ('{"version": 1}', "need a report of version 2, was 1"),
        ('{"version": 2}', "need a report of torchloom evaluate: "),
    ],
)
def test_what_is_no_report_is_one_line(tmp_path, text, error):
    folder = tmp_path / "x-evaluation"
    folder.mkdir()
    path = folder / "report.json"
    if text is not None:
        path.write_text(text)
        assert error in Backtest(None, tmp_path, POLICIES).shown()["trouble"]
    with pytest.raises(DashboardError, match=error.split(":")[0]) as refused:
        Backtest(folder, tmp_path, POLICIES)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_what_never_ends_is_not_read(tmp_path):
    folder = tmp_path / "small-evaluation"
    folder.mkdir()
    os.mkfifo(folder / "report.json")
    assert "Not a regular file" in Backtest(None, tmp_path, POLICIES).shown()["trouble"]


def test_a_folder_whose_name_is_not_utf8_can_be_named(tmp_path):
    write(tmp_path / "\udcff-evaluation", {})
    update = Backtest(None, tmp_path, POLICIES).shown()
    assert "\\udcff-evaluation" in update["path"]
    json.dumps(update, ensure_ascii=False).encode()


def test_other_fields_of_a_report_do_no_harm(tmp_path):
    path = write(tmp_path / "x-evaluation", {})
    report = json.loads(path.read_text())
    report["of a later day"] = report["traces"][0]["also"] = [1]
    path.write_text(json.dumps(report))
    assert Backtest(path, tmp_path, POLICIES).shown()["expectations"]
