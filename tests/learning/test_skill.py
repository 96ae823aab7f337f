"""Four levels: refused, no skill, weak and useful; the sentence says what a higher one needs."""

import msgspec
import pytest

from tests.evaluate.report.reports import score
from torchloom_core.lab.evaluate.forecasts.intervals import exact_rate, exact_share
from torchloom_core.lab.learning.forecast_score import FEW, ForecastScore, Interval
from torchloom_core.lab.learning.skill import verdict

CLEAR = Interval(value=0.02, low=0.006, high=0.05)
HARDLY = Interval(value=0.02, low=0.0004, high=0.05)
BELOW = Interval(value=-0.01, low=-0.02, high=-0.001)


def judged(above_random=CLEAR, found=10, incidents=20, false=10, **fields):
    """Return a score where 5 % of the moments are positive: a random score's AUPRC."""
    known = {
        "versus": {"random": above_random, "fault_history": CLEAR},
        "incidents": incidents,
        "recall": exact_share(found, incidents - found),
        "precision": exact_share(found, false),
        "false_alarms_per_node_day": exact_rate(false, 1000.0),
        "leads_s": (3600.0,) * found,
        "flags": (),
        "by_chance": 0.031,
        "allowed_per_node_day": 0.01,
    }
    return score(**{**known, **fields})


def test_what_is_above_every_baseline_and_finds_a_tenth_at_the_allowed_false_alarms_is_useful():
    assert verdict(judged()) == (
        "useful",
        "Useful: AUPRC is above that of a random score by +0.02 [+0.006, +0.05] and above that of "
        "the fault count by +0.02 [+0.006, +0.05]; at its threshold it found 10 of 20 failures "
        "(50 %, by chance 3.1 %), 50 % of its alarms were right, and it raised 10 false alarms per "
        "1,000 component-days, 10 allowed.",
    )


@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        (  # 9 of 3,260 failures found, AUPRC .0112 at a prevalence of .0054
            {
                "prevalence": 0.0054, "auprc": Interval(value=0.0112), "incidents": 3260,
                "above_random": Interval(value=0.0058, low=0.004, high=0.007), "found": 9,
                "by_chance": 0.0008,
            },
            "it found fewer than 10 % of the failures",
        ),
        (  # 3,067 of 3,260 at an event precision of .0101
            {"found": 3067, "incidents": 3260, "precision": Interval(value=0.0101)},
            "fewer than 5 % of its alarms were right",
        ),
        (  # one alarm in 360
            {"found": 10, "false": 3590, "allowed_per_node_day": 4.0},
            "fewer than 5 % of its alarms were right",
        ),
        ({"found": 0}, "its recall is not significantly above chance"),
        ({"by_chance": 0.4}, "its recall is not significantly above chance"),
        ({"false": 90}, "it raised more than 2 times the false alarms that were allowed"),
        (
            {"versus": {"random": CLEAR, "logistic": HARDLY, "one_rule": CLEAR}},
            "it is not significantly above every baseline",
        ),
    ],
)  # fmt: skip
def test_a_ranking_better_than_chance_with_shortfalls_is_weak_and_lists_them(lacks, why):
    level, sentence = verdict(judged(**lacks))
    assert level == "weak"
    assert sentence.startswith("Weak: AUPRC is above that of a random score by +")
    assert why in sentence.partition(" Not useful, as ")[2]


def test_what_is_itself_a_baseline_is_useful_where_no_other_one_is_better():
    alike = {"random": CLEAR, "one_rule": HARDLY}
    assert verdict(judged(predictor="logistic", versus=alike)).level == "useful"
    level, sentence = verdict(judged(predictor="logistic", versus={**alike, "one_rule": BELOW}))
    assert level == "weak"
    assert sentence.endswith(" Not useful, as another baseline is better.")


def test_more_false_alarms_than_allowed_are_reported_at_every_level():
    for level, one in (
        ("useful", judged(false=15)),
        ("no skill", judged(HARDLY, false=15)),
        ("no skill", judged(Interval(value=0.02), incidents=FEW - 1, false=15)),
        ("refused", judged(false=15, flags=("leaky_column: a: its length",))),
    ):
        found = verdict(one)
        assert found.level == level
        assert "15 false alarms per 1,000 component-days, more than the 10" in found.sentence


def test_a_few_alarms_above_a_small_budget_may_be_chance_and_are_accepted():
    few = {"false_alarms_per_node_day": exact_rate(1, 50.0), "allowed_per_node_day": 0.001}
    assert verdict(judged(**few)).level == "useful"


@pytest.mark.parametrize(
    ("low", "clear"),
    [(-0.001, False), (0.0, False), (0.0049, False), (0.1 * 0.05, False), (0.0051, True)],
)
def test_an_interval_that_begins_within_a_tenth_of_chance_is_not_clear_of_0(low, clear):
    level, sentence = verdict(judged(Interval(value=0.02, low=low, high=0.05)))
    assert (level == "useful") is clear
    assert ("need all of it above +0.005)" in sentence) is not clear


@pytest.mark.parametrize(
    ("above", "expected"),
    [
        (
            HARDLY,
            "not significantly above that of a random score (+0.02 [+0.0004, +0.05], need all",
        ),
        (BELOW, "below that of a random score (-0.01 [-0.02, -0.001])"),
        (Interval(value=-0.01, low=-0.02, high=-1e-9), "below "),
        (Interval(value=-0.01, low=-0.02, high=0.0), "not significantly above "),
    ],
)
def test_a_ranking_no_better_than_random_has_no_skill(above, expected):
    level, sentence = verdict(judged(above))
    assert level == "no skill"
    assert sentence.startswith(f"No skill: AUPRC is {expected}")
    assert "it found 10 of 20 failures (50 %, by chance 3.1 %)" in sentence


def test_a_suspicion_is_named_and_changes_no_level():
    doubted = verdict(judged(flags=("partly_unjudged", "suspicious_feature: hours_left")))
    assert doubted.level == "useful"
    assert doubted.sentence.endswith(" Suspicious: suspicious_feature: hours_left.")
    both = verdict(judged(flags=("suspicious_feature: hours_left", "point_adjusted")))
    assert both.sentence.endswith(": suspicious_feature: hours_left, point_adjusted.")


@pytest.mark.parametrize(
    ("task", "count", "what"),
    [
        ("forecast", FEW - 1, "failures"),
        ("forecast", 1, "failures"),
        ("detect", 2, "incidents"),
        ("detect", 1, "incidents"),
    ],
)
def test_with_few_incidents_no_skill_is_shown(task, count, what):
    level, sentence = verdict(judged(Interval(value=0.02), found=1, incidents=count, task=task))
    assert level == "no skill"
    assert sentence.startswith(
        f"No skill shown: need 20 {what} in the scored time, was {count}; at its"
    )


@pytest.mark.parametrize(
    ("versus", "expected"),
    [
        ({}, ", with no baseline to compare with;"),
        (
            {"fault_history": CLEAR, "one_rule": BELOW},
            ", but below that of one feature alone (-0.01 [-0.02, -0.001]);",
        ),
        (
            {"fault_history": CLEAR, "logistic": HARDLY},
            ", but not significantly above that of a logistic regression (+0.02 [+0.0004, +0.05], "
            "need all of it above +0.005);",
        ),
        (
            {"one_rule": CLEAR, "logistic": Interval(value=0.03, low=-0.001, high=0.06)},
            ", but not significantly above that of a logistic regression (+0.03 [-0.001, +0.06]);",
        ),
        (
            {"fault_history": Interval(value=-0.01, low=-0.02, high=0.0)},
            ", but not significantly above that of the fault count (-0.01 [-0.02, +0]);",
        ),
    ],
)
def test_the_nearest_baseline_is_named(versus, expected):
    assert expected in verdict(judged(versus={"random": CLEAR, **versus})).sentence


def test_without_a_random_score_there_is_no_verdict_sentence():
    assert verdict(judged(versus={})) == ("no skill", "")


def test_what_reads_a_column_that_knows_the_future_is_refused_and_the_column_is_named():
    flags = ("leaky_column: a: length: its first value tells it", "partly_unjudged")
    level, sentence = verdict(judged(flags=flags, above_random=BELOW))
    assert level == "refused"
    assert sentence.startswith("Refused: it reads leaky columns: a: length; at its")
    both = judged(flags=(*flags, "leaky_column: b: its first value tells it"))
    assert ": a: length, b; " in verdict(both).sentence


def test_an_older_score_without_budget_and_chance_is_judged_by_the_same_rule():
    older = msgspec.json.decode(msgspec.json.encode(judged()))
    for new in ("by_chance", "allowed_per_node_day", "verdict"):
        del older[new]
    score = msgspec.convert(older, ForecastScore)
    level, sentence = verdict(score)
    assert level == "useful"
    assert "it found 10 of 20 failures (50 %), 50 % of its alarms were right" in sentence
