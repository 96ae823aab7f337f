import io

from rich.console import Console

from tests.evaluate.report.reports import arm, interval, report, simulation
from torchloom_core.evaluate.report import tables
from torchloom_core.evaluate.report.wording import duration, estimate, findings, gain
from torchloom_core.evaluate.results import Interval


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


def test_a_flag_stands_below_the_table_with_its_predictor():
    assert "\n! ewma: no_embargo: need 7 d, was 0 d" in printed(report())


def test_a_long_reason_for_a_quarantine_leaves_the_table_as_it_is():
    why = "raised: ValueError: " + "one of many words " * 20
    arms = list(simulation().arms)
    plain = printed(report(simulation=simulation(arms=tuple(arms))), width=80).splitlines()
    fields = {f: getattr(arms[-1], f) for f in arms[-1].__struct_fields__}
    arms[-1] = type(arms[-1])(**{**fields, "quarantined": {"trend": why}, "silent": {"ewma": 1}})
    broken = printed(report(simulation=simulation(arms=tuple(arms))), width=80)
    row = next(line for line in plain if line.startswith("no_failures"))
    assert row in broken.splitlines()
    assert "\n! failure_forecast: trend was quarantined: raised: ValueError: one of" in broken
    assert "! failure_forecast: ewma forecast nothing in 1 of 2 runs" in broken


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


def test_a_gain_whose_interval_holds_zero_is_not_called_better():
    arms = list(simulation().arms)
    fields = {f: getattr(arms[-1], f) for f in arms[-1].__struct_fields__}
    fields["versus_reference"] = Interval(value=0.01, low=-0.002, high=0.02)
    arms[-1] = type(arms[-1])(**fields)
    said = " ".join(findings(report(simulation=simulation(arms=tuple(arms)))))
    assert "not to be told from daly (+1.00 [-0.20, +2.00] points)" in said
    assert "better than daly" not in said


def test_a_baseline_that_recovers_otherwise_and_is_better_is_not_passed_over():
    better = arm("per_step", "baseline", 0.96, versus_reference=interval(0.055))
    said = findings(report(simulation=simulation(arms=(*simulation().arms, better))))
    assert any("per_step, which recovers otherwise, has goodput 0.960" in text for text in said)
    assert not any("recovers otherwise" in text for text in findings(report()))


def test_a_loss_is_called_a_loss():
    arms = list(simulation().arms)
    fields = {f: getattr(arms[-1], f) for f in arms[-1].__struct_fields__}
    fields["versus_reference"] = Interval(value=-0.01, low=-0.02, high=-0.002)
    arms[-1] = type(arms[-1])(**fields)
    assert "worse than daly" in " ".join(findings(report(simulation=simulation(arms=tuple(arms)))))


def test_times_are_in_the_unit_a_person_would_use():
    assert [duration(s) for s in (2, 90, 5400, 604_800)] == ["2 s", "1.5 min", "1.5 h", "7 d"]


def test_an_estimate_without_an_interval_stands_alone():
    assert estimate(Interval(value=0.5)) == "0.500"
    assert gain(Interval(value=0.005)) == "+0.50"
    assert gain(None) == ""
