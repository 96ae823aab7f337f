"""Detections: recall by chance, and no skill for random scores."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments.score_intervals.fleet import SETTINGS, draw
from experiments.score_intervals.run import knowing_nothing, scored
from tests.evaluate.report.reports import interval, score
from tests.evaluate.traces import event, judge, task
from tests.examples import examples
from torchloom_core.lab.evaluate.forecasts.alarms import (
    due_moments,
    found_by_chance,
    scored_incidents,
)
from torchloom_core.lab.evaluate.forecasts.scores import score as score_of
from torchloom_core.lab.learning.forecast_score import Interval
from torchloom_core.lab.learning.skill import verdict

GOES_ON = next(setting for setting in SETTINGS if setting.kind == "detect")
DRAWS = 12
"""Of each; the command of the experiment makes 200."""


def detection(alarms, *spans):
    """Return hours of one node with incidents from so many hours to so many."""
    events = [event("n00000", start, end) for start, end in spans]
    return judge(np.array(alarms, float)[:, None], events, task(1, kind="detect"), span_h=1000)


def test_chance_is_what_the_alarms_find_wherever_in_time_they_were():
    judged = detection([0, 1, 0, 0, 0, 0, 0, 0, 0, 0], (4, 6))
    assert found_by_chance(judged, judged.alarms(0.5)) == pytest.approx(2 / 10)
    judged = detection([1, 0, 0, 0, 0, 1, 0, 0, 0, 0], (4, 7), (8, 9))
    assert found_by_chance(judged, judged.alarms(0.5)) == pytest.approx((6 / 10 + 2 / 10) / 2)


def test_too_few_incidents_are_reported_as_incidents():
    judged = detection(np.zeros(10), (4, 6))
    few = score_of(judged, predictor="a", threshold=0.5, threshold_from="")
    assert few.auprc.method == "none: 1 incident is fewer than 20"


def test_an_alarm_that_never_ends_finds_all_by_chance_and_none_finds_nothing():
    judged = detection(np.ones(10), (4, 6), (8, 9))
    assert found_by_chance(judged, judged.alarms(0.5)) == 1.0
    assert found_by_chance(judged, judged.alarms(2.0)) == 0.0
    quiet = detection(np.ones(10))
    assert found_by_chance(quiet, quiet.alarms(0.5)) == 0.0


@settings(max_examples=examples(50), deadline=None)
@given(arrays(np.bool_, (12, 2)), st.integers(0, 9), st.integers(1, 3))
def test_chance_is_the_mean_over_all_places_round_the_time(alarms, start, length):
    events = [event(name, start, start + length) for name in ("n00000", "n00001")]
    judged = judge(alarms.astype(float), events, task(1, kind="detect"), span_h=1000)
    found = [
        scored_incidents(judged, np.roll(alarms, by, axis=0)).found.mean()
        for by in range(len(alarms))
    ]
    assert found_by_chance(judged, alarms) == pytest.approx(np.mean(found))


@settings(max_examples=examples(50), deadline=None)
@given(arrays(np.bool_, (12, 3)), st.lists(st.integers(2, 11), max_size=3, unique=True))
def test_of_a_forecast_chance_is_the_mean_over_all_places_of_all_components(alarms, starts):
    """What is not judged, as while n00000 is under repair, is no place for an alarm."""
    events = [event(f"n0000{at}", start, start + 1) for at, start in enumerate(starts)]
    judged = judge(alarms.astype(float), events, task(2), span_h=100)
    columns = [alarms[~np.isnan(came), at] for at, came in enumerate(judged.outcome.T)]
    places = [np.roll(one, by) for one in columns for by in range(len(one))]
    shares = [
        np.mean([place[: len(due)].any() for place in places])
        for due in due_moments(judged)
        if len(due)
    ]
    chance = found_by_chance(judged, alarms)
    assert chance == pytest.approx(np.mean(shares) if shares else 0.0)


def test_moments_of_one_long_incident_are_taken_together():
    """An incident of three days makes stretches of six, though alarms within an hour are one."""
    spans = [(start, start + 3) for start in range(0, 40 * 24, 24)]
    short = detection(np.zeros(40 * 24), *spans)
    long = detection(np.zeros(40 * 24), *spans[:-4], (36 * 24, 39 * 24 + 1))
    for judged, reported_d in ((short, "1 d"), (long, "6 d")):
        found = score_of(judged, predictor="a", threshold=0.5, threshold_from="")
        assert f"stretches of {reported_d} " in found.auprc.method


def detection_of(by_chance, **more):
    given = {
        "task": "detect", "incidents": 50, "recall": interval(0.6, 0.1), "by_chance": by_chance,
        "leads_s": (-600.0,) * 30, "versus": {"random": interval(0.3)}, **more,
    }  # fmt: skip
    return score(**given)


def test_alarms_that_find_no_more_than_at_other_times_are_weak():
    assert verdict(detection_of(0.4)).level == "useful"
    assert verdict(detection_of(0.5)).level == "weak"
    message = verdict(detection_of(0.55)).sentence
    assert message.startswith("Weak: AUPRC is above that of a random score")
    assert "its recall is not significantly above chance" in message
    assert "(60 %, by chance 55 %)" in message


def test_a_detection_is_compared_with_the_strongest_baseline():
    hard = Interval(value=-0.01, low=-0.03, high=0.02)
    message = verdict(
        detection_of(
            0.1, versus={"random": interval(0.3), "logistic": interval(0.2), "row_rule": hard}
        )
    ).sentence
    assert "but not significantly above that of the farthest metric alone (-0.01" in message
    assert "logistic" not in message


@pytest.fixture(scope="module")
def fleets():
    small = replace(GOES_ON, nodes=20, rate=0.06)
    return [draw(small, seed) for seed in range(DRAWS)]


@pytest.mark.slow
def test_a_random_score_and_a_constant_one_have_no_skill_in_a_detection(fleets):
    """At most 5 in 100 are allowed; of so few draws none is to be expected, and one may be."""
    skilled = dict.fromkeys(("noise", "one constant", "a constant a node", "a walk a node"), 0)
    for seed, fleet in enumerate(fleets):
        message = knowing_nothing(fleet, np.random.default_rng([seed, 2]))
        for name in skilled:
            skilled[name] += scored(fleet, message[name], seed).verdict in ("weak", "useful")
    assert max(skilled.values()) <= 1, skilled
    assert skilled["one constant"] == 0


def test_a_score_that_rises_while_it_goes_on_has_skill_in_a_detection(fleets):
    found = []
    for seed, fleet in enumerate(fleets):
        score = np.where(fleet.outcome == 1.0, 3.0, 0.0) + fleet.informative(_random(seed))
        found.append(scored(fleet, score, seed))
    assert sum(one.verdict in ("weak", "useful") for one in found) >= DRAWS - 1
    assert all(one.recall.value > one.by_chance for one in found)


def _random(seed):
    return np.random.default_rng([seed, 1])
