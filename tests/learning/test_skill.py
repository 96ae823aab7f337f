"""Skill is to rank clearly better than chance and to find failures; what lacks is said."""

import pytest

from tests.evaluate.report.reports import score
from torchloom_core.evaluate.forecasts.intervals import exact_share
from torchloom_core.learning.forecast_score import FEW, Interval
from torchloom_core.learning.skill import has_skill, skill_sentence

CLEAR = Interval(value=0.02, low=0.006, high=0.05)
HARDLY = Interval(value=0.02, low=0.0004, high=0.05)
BELOW = Interval(value=-0.01, low=-0.02, high=-0.001)


def judged(above_random=CLEAR, found=5, incidents=20, **fields):
    """Return a score where 5 % of the moments are positive: a random score's AUPRC."""
    known = {
        "versus": {"random": above_random},
        "incidents": incidents,
        "recall": exact_share(found, incidents - found),
        "leads_s": (3600.0,) * found,
        "flags": (),
    }
    return score(**{**known, **fields})


def test_what_ranks_clearly_better_than_chance_and_finds_failures_has_skill():
    assert has_skill(judged())
    assert skill_sentence(judged()) == (
        "Skill: AUPRC is above that of a random score by +0.02 [+0.006, +0.05]; at its threshold "
        "it found 5 of 20 failures."
    )


def test_what_finds_no_failure_at_its_threshold_has_none_to_act_on_however_it_ranks():
    assert not has_skill(judged(found=0))
    assert skill_sentence(judged(found=0)) == (
        "No skill to act on: AUPRC is above that of a random score by +0.02 [+0.006, +0.05], but "
        "at its threshold it found none of 20 failures."
    )
    assert has_skill(judged(found=1))


def test_failures_that_were_all_found_in_one_place_are_not_counted_on():
    luck = judged(found=20, incidents=80, recall=Interval(value=0.25, low=0.0, high=0.7))
    assert not has_skill(luck)
    assert skill_sentence(luck).endswith("found 20 of 80 failures, too close together to count on.")


@pytest.mark.parametrize(
    ("low", "clear"),
    [(-0.001, False), (0.0, False), (0.0049, False), (0.1 * 0.05, False), (0.0051, True)],
)
def test_an_interval_that_begins_within_a_tenth_of_chance_is_not_clear_of_0(low, clear):
    found = judged(Interval(value=0.02, low=low, high=0.05))
    assert has_skill(found) is clear
    assert ("need all of it above +0.005)" in skill_sentence(found)) is not clear


def test_a_bound_that_is_next_to_0_is_not_shown_as_0_and_what_was_found_is_said_too():
    assert skill_sentence(judged(HARDLY, found=0)) == (
        "No skill: AUPRC is not surely above that of a random score (+0.02 [+0.0004, +0.05], need "
        "all of it above +0.005); at its threshold it found none of 20 failures."
    )


def test_what_ranks_worse_than_a_random_score_is_said_to():
    assert not has_skill(judged(BELOW))
    assert skill_sentence(judged(BELOW)) == (
        "No skill: AUPRC is below that of a random score (-0.01 [-0.02, -0.001]); at its "
        "threshold it found 5 of 20 failures."
    )


@pytest.mark.parametrize(("high", "said"), [(-1e-9, "is below"), (0.0, "is not surely above")])
def test_an_interval_that_ends_at_0_is_not_below_it(high, said):
    assert skill_sentence(judged(Interval(value=-0.01, low=-0.02, high=high))).startswith(
        f"No skill: AUPRC {said} that of a random score"
    )


def test_a_doubt_is_told_and_takes_no_skill_away():
    doubted = judged(flags=("partly_unjudged", "suspicious_feature: hours_left"))
    assert has_skill(doubted)
    assert skill_sentence(doubted).endswith(" Not to be trusted: suspicious_feature: hours_left.")
    both = judged(flags=("suspicious_feature: hours_left", "point_adjusted"))
    assert skill_sentence(both).endswith(": suspicious_feature: hours_left, point_adjusted.")


@pytest.mark.parametrize(
    ("task", "count", "what", "said"),
    [
        ("forecast", FEW - 1, "failures", "19 failures"),
        ("forecast", 1, "failures", "1 failure"),
        ("detect", 2, "incidents", "2 incidents"),
        ("detect", 1, "incidents", "1 incident"),
    ],
)
def test_with_few_of_what_is_told_no_skill_is_shown(task, count, what, said):
    few = judged(Interval(value=0.02), found=1, incidents=count, task=task)
    assert not has_skill(few)
    assert skill_sentence(few) == (
        f"No skill shown: it takes 20 {what} to tell, was {said} in the scored time."
    )


def test_of_the_baselines_beside_it_the_nearest_is_named():
    found = judged(versus={"random": CLEAR, "fault_history": CLEAR, "one_rule": BELOW})
    assert ", but one feature alone is better still (-0.01" in skill_sentence(found)
    unsure = judged(versus={"random": CLEAR, "fault_history": CLEAR, "logistic": HARDLY})
    assert ", but not surely above that of a logistic regression (" in skill_sentence(unsure)


def test_what_it_is_surely_above_is_not_named_as_what_it_is_not_surely_above():
    wider = Interval(value=0.03, low=-0.001, high=0.06)
    found = judged(versus={"random": CLEAR, "one_rule": CLEAR, "logistic": wider})
    assert ", but not surely above that of a logistic regression (+0.03 " in skill_sentence(found)


@pytest.mark.parametrize(
    ("above", "said"),
    [
        (CLEAR, " and above that of the fault count by +0.02 [+0.006, +0.05];"),
        (
            HARDLY,
            ", but not surely above that of the fault count (+0.02 [+0.0004, +0.05], need all of "
            "it above +0.005);",
        ),
        (BELOW, ", but the fault count is better still (-0.01 [-0.02, -0.001]);"),
        (
            Interval(value=-0.01, low=-0.02, high=0.0),
            ", but not surely above that of the fault count (-0.01 [-0.02, +0]);",
        ),
    ],
)
def test_the_fault_count_beside_it_is_held_to_the_same_rule(above, said):
    found = judged(versus={"random": CLEAR, "fault_history": above})
    assert has_skill(found)
    assert said in skill_sentence(found)


def test_nothing_random_beside_it_leaves_nothing_to_say():
    assert not has_skill(judged(versus={}))
    assert skill_sentence(judged(versus={})) == ""


def test_what_reads_a_column_that_knows_the_future_has_none_and_the_column_is_named():
    flags = ("foretelling_column: a: length: its first value tells it", "partly_unjudged")
    found = judged(flags=flags)
    assert not has_skill(found)
    assert skill_sentence(found).endswith("but it reads what knows the future: a: length.")
    both = judged(flags=(*flags, "foretelling_column: b: its first value tells it"))
    assert skill_sentence(both).endswith("but it reads what knows the future: a: length, b.")
    assert skill_sentence(judged(flags=flags, above_random=BELOW)).startswith("No skill: AUPRC is")
