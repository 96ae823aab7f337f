"""A report on several traces: each by name, and results over all."""

import io
import re

import pytest
from rich.console import Console

from tests.evaluate.report.reports import TRACE, arm, interval, results, score, simulation
from tests.evaluate.traces import event, judge, task
from torchloom_core.lab.evaluate.forecasts.scores import Pool
from torchloom_core.lab.evaluate.over_fleets import goodput_over_fleets, scores_over_fleets
from torchloom_core.lab.evaluate.report.fleets import findings
from torchloom_core.lab.evaluate.report.page import page_text
from torchloom_core.lab.evaluate.report.tables import tables
from torchloom_core.lab.evaluate.results import OverFleets, Report

NAMES = ("west", "east", "<north>")


def forecasts(*gains):
    """Return one predictor's score of each trace."""
    return [
        (score(auprc=interval(0.05 + gain), versus={"random": interval(gain)}),) for gain in gains
    ]


def over(scores=(), simulations=()):
    pool = Pool()
    for (one,) in scores:
        pool.add(one.predictor, judge([[0.0]] * 4, [event("n00000", 3)], task(2)))
    results = {"goodput": goodput_over_fleets(simulations)} if simulations else {}
    count = len(scores) or len(simulations)
    return OverFleets(traces=count, forecasts=scores_over_fleets(scores, pool), **results)


def played(*gains):
    """Return the simulation of each trace, of which a candidate gains so much."""
    return [
        simulation(
            arms=(
                arm("young", "baseline", 0.90),
                arm("daly", "baseline", 0.88 + number / 50),
                arm("oracle", "oracle", 0.95, versus_without=interval(0.05)),
                arm(
                    "mine",
                    "candidate",
                    0.90 + gain,
                    versus_without=interval(gain),
                    versus_reference=interval(gain),
                ),
            ),
            unknown_follows={},
        )
        for number, gain in enumerate(gains)
    ]


def whole(fleets, each):
    traces = tuple(
        results(trace={**TRACE, "name": name}, **fields)
        for name, fields in zip(NAMES, each, strict=False)
    )
    return Report(mode="simulate", traces=traces, fleets=fleets, torchloom="0.1.0")


def printed(report):
    out = io.StringIO()
    Console(file=out, width=200).print(tables(report))
    return out.getvalue()


def test_a_consistent_gain_over_fleets_is_a_finding_and_a_varying_one_is_not():
    (sure,) = findings(over(forecasts(0.2, 0.21, 0.22)))
    assert "It is above a random score on fleets like these (+0.210 [" in sure
    assert "ahead on 3 traces, behind on 0" in sure
    (unsure,) = findings(over(forecasts(0.4, 0.01, 0.02)))
    assert "It is not clearly above a random score" in unsure
    assert "], need the whole interval above +0.0" in unsure


def test_two_traces_are_reported_as_too_few():
    (message,) = findings(over(forecasts(0.2, 0.2)))
    assert message.endswith("need 3 with failures, was 2 in total.")
    message = " ".join(findings(over(simulations=played(0.02, 0.03))))
    assert "need 3, was 2." in message
    assert "better" not in message


def test_the_reference_is_one_for_all_fleets_and_gains_are_over_it():
    found = goodput_over_fleets(played(0.02, 0.03, 0.04))
    assert found.reference == "young"  # daly is better on the last, and not on the mean
    mine = next(one for one in found.arms if one.name == "mine")
    assert mine.over_reference == pytest.approx((0.02, 0.03, 0.04))
    assert mine.versus_reference.value == pytest.approx(0.03)
    assert (mine.versus_without.ahead, mine.versus_without.behind) == (3, 0)
    assert next(one for one in found.arms if one.name == "young").versus_reference is None


def test_a_candidate_is_better_over_fleets_only_if_the_whole_interval_is():
    clear = " ".join(findings(over(simulations=played(0.02, 0.021, 0.022))))
    assert "mine, over 3 traces: better on the mean over fleets than the same job" in clear
    unclear = " ".join(findings(over(simulations=played(0.04, -0.03, 0.02))))
    assert "not clearly different on the mean over fleets from the same job without it" in unclear
    assert "ahead on 2 traces, behind on 1" in unclear


def test_the_terminal_shows_each_trace_by_name_and_then_the_mean():
    scores = forecasts(0.2, 0.21, 0.22)
    text = printed(whole(over(scores), [{"forecasts": one, "simulation": None} for one in scores]))
    assert text.index("west:") < text.index("east:") < text.index("Forecasts over 3 traces")
    rows = [line for line in text.splitlines() if line.startswith("trend ")]
    assert any("mean over fleets" in row and "+0.210 [" in row for row in rows)
    assert any("pooled" in row for row in rows)


@pytest.mark.slow
def test_the_page_has_a_part_for_each_trace_and_one_for_all_and_every_link_leads_somewhere():
    gains = (0.02, 0.021, 0.022)
    scores, simulations = forecasts(*gains), played(*gains)
    report = whole(
        over(scores, simulations),
        [
            {"forecasts": one, "simulation": other}
            for one, other in zip(scores, simulations, strict=True)
        ],
    )
    page = page_text(report)
    sections = re.findall(r'<section id="([^"]+)"', page)
    assert len(sections) == len(set(sections))
    assert set(re.findall(r'<a href="#([^"]+)"', page)) == {*sections, "fleets"}
    assert "<north>" not in page
    assert "&lt;north&gt;: findings" in page
    assert "gain over the same job without the arm's policies, points" in page
    assert page == page_text(report)
