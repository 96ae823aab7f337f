import io

from msgspec.structs import replace
from rich.console import Console

from tests.evaluate.report.reports import (
    TRACE,
    arm,
    interval,
    report,
    results,
    score,
    simulation,
)
from torchloom_core.evaluate.arm_results import Verdicts
from torchloom_core.evaluate.report import page_text, tables
from torchloom_core.evaluate.report.findings import complaints, findings
from torchloom_core.evaluate.report.wording import counts, duration, estimate, gain
from torchloom_core.evaluate.results import AsPlanned
from torchloom_core.learning.forecast_score import Interval


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
    plain = printed(report(simulation=simulation(arms=tuple(arms))), width=120).splitlines()
    fields = {f: getattr(arms[-1], f) for f in arms[-1].__struct_fields__}
    arms[-1] = type(arms[-1])(**{**fields, "quarantined": {"trend": why}, "silent": {"ewma": 1}})
    broken = printed(report(simulation=simulation(arms=tuple(arms))), width=120)
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


def changed(**fields):
    """Return what was found with another candidate."""
    *others, last = simulation().arms
    return results(simulation=simulation(arms=(*others, replace(last, **fields))))


def test_a_candidate_is_held_first_against_the_same_job_without_it():
    said = next(text for text in findings(changed()) if text.startswith("failure_"))
    assert said.startswith(
        "failure_forecast is better than the same job without it (+2.50 [+2.00, +3.00] points), "
        "and is better than daly (+1.50 [+1.00, +2.00] points): goodput 0.920"
    )
    assert "Granted a run: migrate 3, cordon 2; denied by cordoned_share 2; cordoned n3 1" in said


def test_a_score_is_told_beside_the_prevalence():
    said = findings(results(forecasts=(score(prevalence=0.00293),)))
    assert any(" at a prevalence of 0.00293, on 9 incidents. Better" in text for text in said)


def test_a_reference_that_is_the_job_without_it_is_told_once():
    same = interval(0.015, 0.005)
    said = " ".join(findings(changed(versus_without=same, versus_reference=same)))
    assert "is better than the same job without it, here daly (+1.50" in said
    assert "and is better" not in said


def test_a_gain_whose_interval_holds_zero_is_not_called_better():
    held = Interval(value=0.01, low=-0.002, high=0.02)
    said = " ".join(findings(changed(versus_reference=held, versus_without=held)))
    assert "no clear difference to the same job without it, here daly (+1.00 [-0.20" in said
    assert "is better than" not in said


def test_a_gain_that_few_runs_make_out_shows_how_few():
    few = Interval(value=0.01, low=0.002, high=0.02, ahead=2, behind=0)
    said = " ".join(findings(changed(versus_without=few)))
    assert "(+1.00 [+0.20, +2.00] points; ahead in 2 runs, behind in 0)" in said


def test_a_candidate_as_good_as_who_knows_the_future_is_a_complaint():
    def told(to_oracle):
        return complaints(changed(to_oracle=to_oracle).simulation)

    assert not told(0.5)
    (text,) = told(0.99)
    assert "failure_forecast goes 99% of the way to oracle, who knows the future" in text


def test_baselines_that_may_be_as_good_as_the_reference_are_named_beside_it():
    near = arm("young", "baseline", 0.904, versus_reference=interval(-0.001))
    far = arm("static_3h", "baseline", 0.80, versus_reference=interval(-0.1))
    arms = [one for one in simulation().arms if one.name != "young"]
    said = findings(results(simulation=simulation(arms=(*arms, near, far))))
    assert any(
        "daly is best: goodput" in text
        and "Not clearly worse: young (-0.10 [-1.10, +0.90] points)." in text
        for text in said
    )


def test_the_findings_say_what_the_intervals_are_not_about():
    assert "another fleet" in findings(results())[-1]
    assert not any("another fleet" in text for text in findings(results(simulation=None)))


def test_a_share_that_rounds_to_nothing_has_no_minus():
    assert gain(Interval(value=-1e-6, low=-2e-5, high=1e-5)) == "+0.00 [+0.00, +0.00]"


def test_a_policy_that_did_nothing_is_not_blamed_for_its_job():
    worse = Interval(value=-0.01, low=-0.02, high=-0.002)
    idle = changed(decisions=0.0, operations=Verdicts(), versus_reference=worse)
    said = " ".join(findings(idle))
    assert "failure_forecast did nothing in 2 runs: it proposed nothing. The job fared" in said
    assert "worse than" not in said


def test_a_policy_that_was_denied_everything_learns_by_which_rule():
    operations = Verdicts(
        proposed=5.0,
        denied={"budget": 1.0, "cordoned_share": 4.0},
        why_denied={"budget": "spent", "cordoned_share": "need at most 10 %, was 12 %"},
    )
    said = " ".join(findings(changed(decisions=0.0, operations=operations)))
    assert (
        "none of its 5 proposals a run was granted, most often by the rule cordoned_share: need "
        "at most 10 %, was 12 %"
    ) in said


def test_a_policy_that_only_alerts_did_nothing():
    said = " ".join(
        findings(changed(decisions=0.0, operations=Verdicts(proposed=2.0, granted={"alert": 2.0})))
    )
    assert "what it was granted changes nothing (alert 2 a run)" in said


def test_an_oracle_that_could_not_act_is_a_complaint():
    assert not any("no forecast can pay" in text for text in complaints(simulation()))
    arms = [
        replace(one, decisions=0.0, operations=Verdicts()) if one.kind == "oracle" else one
        for one in simulation().arms
    ]
    text = printed(report(simulation=simulation(arms=tuple(arms))))
    flat = " ".join(text.split())
    assert "oracle, told of each failure 7 d before it comes, did nothing" in flat
    assert "Policies look every 1 min" in flat


def test_a_baseline_that_recovers_otherwise_and_is_better_is_not_passed_over():
    better = arm("per_step", "baseline", 0.96, versus_reference=interval(0.055))
    said = findings(results(simulation=simulation(arms=(*simulation().arms, better))))
    assert any("per_step, which recovers otherwise, has goodput 0.960" in text for text in said)
    assert not any("recovers otherwise" in text for text in findings(results()))


def test_a_loss_is_called_a_loss():
    loss = Interval(value=-0.01, low=-0.02, high=-0.002)
    assert "is worse than daly" in " ".join(findings(changed(versus_reference=loss)))


def test_counts_name_the_largest_first_and_how_many_are_left_out():
    assert counts({"a": 1.0, "b": 2.5, "c": 0.25}) == "b 2.5, a 1, c 0.25"
    assert counts({"a": 1.0, "b": 2.5, "c": 0.25}, 1) == "b 2.5 and 2 more"
    assert counts({}) == ""


def test_times_are_in_the_unit_a_person_would_use():
    assert [duration(s) for s in (2, 90, 5400, 604_800)] == ["2 s", "1.5 min", "1.5 h", "7 d"]


def test_an_estimate_without_an_interval_stands_alone():
    assert estimate(Interval(value=0.5)) == "0.500"
    assert gain(Interval(value=0.005)) == "+0.50"
    assert gain(None) == ""


def test_a_run_that_grows_has_a_row_for_what_it_is_worth_as_planned():
    planned = AsPlanned(goodput=interval(0.905), versus_reference=interval(0.0))
    grows = arm("elastic", "baseline", 0.955, versus_reference=interval(0.05), as_planned=planned)
    shown = report(simulation=simulation(arms=(*simulation().arms, grows)))
    lines = printed(shown).splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("elastic"))
    assert lines[row + 1].split()[:3] == ["as", "planned", "0.905"]
    assert "as planned" not in printed(report())
    assert "as planned</td><td>0.905 [0.895, 0.915]" in page_text(shown)
    (said,) = [one for one in findings(shown.traces[0]) if one.startswith("elastic trains")]
    assert "+5.00 [+4.00, +6.00] points over daly" in said
    assert "and to +0.00 [-1.00, +1.00] if more groups than planned are worth nothing" in said


def test_with_few_seeds_no_baseline_is_said_to_be_as_good_as_the_reference():
    near = arm("young", "baseline", 0.80, versus_reference=Interval(value=-0.1))
    arms = [one for one in simulation().arms if one.name != "young"]
    text = " ".join(findings(results(simulation=simulation(arms=(*arms, near)))))
    assert "Too few seeds were played to tell whether another is as good: need 6, was 2." in text
    assert "Not clearly worse" not in text


def test_a_baseline_that_recovers_otherwise_is_not_among_those_that_may_be_as_good():
    other = arm("restart", "baseline", 0.9, recovery="restart", versus_reference=interval(-0.001))
    job = {"recovery": "per_step", "tick_s": 60.0}
    text = " ".join(
        findings(results(simulation=simulation(arms=(*simulation().arms, other), job=job)))
    )
    assert "restart (" not in text


def test_the_median_lead_of_two_is_between_them():
    text = printed(report(forecasts=(score(leads_s=(3600.0, 10_800.0)),)))
    assert " 2 h" in text
    assert " 3 h" not in text


def test_what_chance_finds_stands_beside_the_recall_of_a_detection_and_of_nothing_else():
    late = score(task="detect", by_chance=0.3, leads_s=(-60.0, -180.0))
    shown = report(forecasts=(late,), simulation=None)
    assert "0.50 [0.49, 0.51], 0.30 by chance" in printed(shown)
    assert "0.50 [0.49, 0.51], 0.30 by chance" in page_text(shown)
    assert any("The median delay is 2 min" in text for text in findings(shown.traces[0]))
    assert "by chance" not in printed(report())


def test_the_page_prints_no_invalid_share_that_nobody_measured():
    page = page_text(report())
    assert "25 %" in page
    assert "<td>0 %</td>" not in page  # the oracle decided, and read nothing that depends on load


def test_false_alarms_are_counted_by_what_is_watched():
    trace = {**TRACE, "watched": "disk"}
    text = printed(report(mode="replay", simulation=None, trace=trace))
    assert "20 [10, 30]" in text
    assert "disk-days" in text
    assert "node" not in text


def test_every_figure_of_several_runs_has_its_interval():
    text = printed(report(), width=200)
    assert "0.935 [0.925, 0.945]" in text  # the ETTR of daly
    assert "<td>0.935 [0.925, 0.945]</td>" in page_text(report())


def test_a_replay_tells_how_far_each_is_above_the_others_and_why_where_it_cannot():
    few = Interval(value=-0.25, method="none: 3 failures are fewer than 5")
    versus = {"random": interval(0.125), "ewma": few}
    shown = report(forecasts=(score(versus=versus),))
    for text in (printed(shown), page_text(shown)):
        assert "+0.125 [+0.115, +0.135]" in text
        assert "-0.250 (no interval: 3 failures are fewer than 5)" in text
    assert "AUPRC above" not in printed(report())


def test_what_a_candidate_alerts_of_is_told_and_what_an_oracle_does_is_not():
    told = Verdicts(proposed=1.0, granted={"alert": 1.0}, alerts=("it is hot",))

    def shown(kind):
        arms = [replace(o, operations=told) if o.kind == kind else o for o in simulation().arms]
        return printed(report(simulation=simulation(arms=tuple(arms))))

    assert "! failure_forecast alerts: it is hot" in shown("candidate")
    assert "alerts:" not in shown("oracle")
