"""Findings on runs whose step time depends on the network."""

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.evaluate.report.reports import interval, report
from torchloom_core.lab.evaluate.allreduce_results import (
    AllreduceArm,
    AllreduceRunResult,
    AllreduceSimulation,
)
from torchloom_core.lab.evaluate.arm import Verdicts
from torchloom_core.lab.evaluate.report.allreduce import findings
from torchloom_core.lab.evaluate.report.page import page_text
from torchloom_core.lab.evaluate.report.tables import tables
from torchloom_core.lab.learning.forecast_score import Interval

IN_MODE = {"none": 0.25, "int8": 0.75}


def arm(name, time_s, kind="baseline", **fields):
    given = {
        "what": f"what {name} is",
        "time_s": interval(time_s, 1.0),
        "progress_per_h": interval(1e6 / time_s, 10.0),
        "in_mode": IN_MODE,
    }
    return AllreduceArm(**{"name": name, "kind": kind, **given, **fields})


def ratio(low, high):
    middle = (low + high) / 2
    return Interval(value=middle, low=low, high=high, method="made up", ahead=5, behind=1)


def tuner(**fields):
    given = {"speedup": ratio(1.2, 1.3), "to_oracle": 0.8, "switches": 4.0, "decisions": 4.0}
    return arm("tuner", 240.0, "candidate", **{**given, **fields})


def simulation(*more, **fields):
    arms = (
        arm("static none", 540.0, speedup=ratio(0.4, 0.5)),
        arm("static int8", 300.0),
        arm("oracle", 220.0, "oracle", speedup=ratio(1.3, 1.4)),
        *more,
    )
    runs = tuple(
        AllreduceRunResult(
            arm=one.name,
            seed=0,
            time_s=300.0,
            wall_s=300.0,
            progress=441.0,
            steps=441,
            switches=1,
            in_mode=IN_MODE,
            modes=((0.0, "none"), (60.0, "int8")),
            curve=((0.0, 0.0), (300.0, 441.0)),
        )
        for one in arms
    )
    given = {
        "job": {"ranks": 4},
        "seeds": (0, 1, 2, 3, 4, 5),
        "progress": 441.0,
        "reference": "static int8",
        "oracle": "oracle",
        "span_s": 240.0,
        "slowest_link": ((0.0, 125e6), (60.0, 6.25e6)),
        "arms": arms,
        "runs": runs,
    }
    return AllreduceSimulation(**{**given, **fields})


@pytest.mark.parametrize(
    ("speedup", "message"),
    [
        (ratio(1.2, 1.3), "tuner is faster than static int8 (speedup 1.250 [1.200, 1.300] in"),
        (ratio(0.7, 0.9), "tuner is slower than static int8"),
        (ratio(0.9, 1.1), "tuner is not clearly different from static int8"),
        (
            Interval(value=1.5, method="none"),
            "tuner has too few seeds for a comparison with static int8",
        ),
    ],
)
def test_nothing_is_called_faster_whose_interval_holds_one(speedup, message):
    first = next(findings(simulation(tuner(speedup=speedup))))
    assert first.startswith(message)
    assert "240.0 [239.0, 241.0] s for the progress of 441 steps of mode none" in first
    assert "80% of the gain of oracle" in first
    assert "It switched 4 times per run; time per mode: int8 75%, none 25%" in first


def test_a_policy_without_actions_gets_no_credit_for_the_run():
    denied = Verdicts(proposed=3.0, denied={"no_gain": 3.0})
    first = next(findings(simulation(tuner(decisions=0.0, switches=0.0, operations=denied))))
    assert first.startswith("tuner took no action: ")
    assert "denied by no_gain 3" in first
    assert "faster" not in first


@pytest.mark.slow
def test_table_and_page_have_every_arm_the_best_first_and_run_nothing():
    shown = report(
        simulation=None, forecasts=(), policies=(),
        allreduce=simulation(tuner(), replace(arm("<b>slow</b>", 900.0), time_s=None)),
    )  # fmt: skip
    out = io.StringIO()
    Console(file=out, width=200).print(tables(shown))
    rows = [line.split("  ")[0] for line in out.getvalue().splitlines()[2:7]]
    assert rows == ["oracle", "tuner", "static int8", "static none", "<b>slow</b>"]
    assert "not reached" in out.getvalue()
    page = page_text(shown)
    assert page == page_text(shown)
    assert "<b>slow</b>" not in page
    assert page.count("<svg") == 2
    for text in ("Time to progress", "slowest link, Mbit/s", "1.250 [1.200, 1.300]", "not reached"):
        assert text in page
