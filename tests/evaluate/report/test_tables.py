import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from tests.evaluate.report.reports import (
    TRACE,
    arm,
    interval,
    report,
    results,
    simulation,
)
from torchloom_core.lab.evaluate.arm import Verdicts
from torchloom_core.lab.evaluate.report.findings import findings, warnings
from torchloom_core.lab.evaluate.report.page import page_text
from torchloom_core.lab.evaluate.report.tables import tables
from torchloom_core.lab.evaluate.report.wording import estimate, gain
from torchloom_core.lab.evaluate.results import AsPlanned
from torchloom_core.lab.learning.forecast_score import Interval


def printed(shown, width=160) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(tables(shown))
    return out.getvalue()


def test_every_arm_predictor_and_policy_has_its_row():
    text = printed(report())
    for name in ("no_failures", "daly", "oracle", "failure_forecast", "trend", "straggler"):
        assert name in text


def test_the_best_arm_comes_first():
    lines = [line for line in printed(report(forecasts=(), policies=())).splitlines() if line]
    assert lines[2].startswith("no_failures")


def test_a_name_with_brackets_is_shown_as_it_is():
    arms = simulation().arms
    odd = type(arms[0])(
        name="[red]a+b[/red]",
        kind="candidate",
        what="",
        needs_forecast=False,
        goodput=interval(0.9),
        ettr=interval(0.9),
    )
    assert "[red]a+b[/red]" in printed(report(simulation=simulation(arms=(*arms, odd))))


def changed(**fields):
    """Return what was found with another candidate."""
    *others, last = simulation().arms
    return results(simulation=simulation(arms=(*others, replace(last, **fields))))


def test_a_candidate_is_first_compared_with_the_same_job_without_it():
    message = next(text for text in findings(changed()) if text.startswith("failure_"))
    assert message.startswith(
        "failure_forecast is better than the same job without it (+2.50 [+2.00, +3.00] points), "
        "and is better than daly (+1.50 [+1.00, +2.00] points): goodput 0.920"
    )
    assert (
        "Granted per run: migrate 3, cordon 2; denied by cordoned_share 2; cordoned n3 1" in message
    )


def test_a_gain_whose_interval_holds_zero_is_not_called_better():
    held = Interval(value=0.01, low=-0.002, high=0.02)
    message = " ".join(findings(changed(versus_reference=held, versus_without=held)))
    assert "not clearly different from the same job without it, here daly (+1.00 [-0.20" in message
    assert "is better than" not in message


def test_a_candidate_as_good_as_the_oracle_gets_a_warning():
    def warned(to_oracle):
        return warnings(changed(to_oracle=to_oracle).simulation)

    assert not warned(0.5)
    (text,) = warned(0.99)
    assert "failure_forecast reaches 99% of the gain of oracle, which knows the future" in text


def test_a_policy_without_actions_is_not_blamed_for_its_job():
    worse = Interval(value=-0.01, low=-0.02, high=-0.002)
    idle = changed(decisions=0.0, operations=Verdicts(), versus_reference=worse)
    message = " ".join(findings(idle))
    assert "failure_forecast took no action in 2 runs: it proposed nothing. Its goodput" in message
    assert "worse than" not in message


def test_an_estimate_without_an_interval_stands_alone():
    assert estimate(Interval(value=0.5)) == "0.500"
    assert gain(Interval(value=0.005)) == "+0.50"
    assert gain(None) == ""


@pytest.mark.slow
def test_a_run_that_grows_has_a_row_for_what_it_is_worth_as_planned():
    planned = AsPlanned(goodput=interval(0.905), versus_reference=interval(0.0))
    grows = arm("elastic", "baseline", 0.955, versus_reference=interval(0.05), as_planned=planned)
    shown = report(simulation=simulation(arms=(*simulation().arms, grows)))
    lines = printed(shown).splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("elastic"))
    assert lines[row + 1].split()[:3] == ["as", "planned", "0.905"]
    assert "as planned" not in printed(report())
    assert "as planned</td><td>0.905 [0.895, 0.915]" in page_text(shown)
    (message,) = [one for one in findings(shown.traces[0]) if one.startswith("elastic trains")]
    assert "over daly is +5.00 [+4.00, +6.00] points" in message
    assert "and +0.00 [-1.00, +1.00] if groups beyond the plan count nothing" in message


def test_false_alarms_are_counted_by_what_is_watched():
    trace = {**TRACE, "watched": "disk"}
    text = printed(report(mode="replay", simulation=None, trace=trace))
    assert "20 [10, 30]" in text
    assert "disk-days" in text
    assert "node" not in text
