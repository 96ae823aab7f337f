"""Scores computed by hand, against scikit-learn, and for random scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score

from tests.evaluate.traces import HOUR_S, drain, event, hours, judge, task
from torchloom_core.floor.clock import SECOND_NS
from torchloom_core.lab.evaluate.forecasts.alarms import leads_s, scored_incidents, threshold_for
from torchloom_core.lab.evaluate.forecasts.intervals import (
    Clusters,
    average_precision,
    exact_rate,
    exact_share,
    ratio,
)
from torchloom_core.lab.evaluate.forecasts.scores import score
from torchloom_core.lab.learning.forecast_score import FEW
from torchloom_core.lab.learning.skill import verdict

NAN = float("nan")


def scored(judged, **more):
    return score(judged, predictor="mine", threshold=0.5, threshold_from="a guess", **more)


def one_node(values, events, of, **more):
    return judge(np.array(values)[:, None], events, of, **more)


def test_an_incident_counts_once_however_many_alarms_it_had():
    judged = one_node([0, 0, 1, 1, 1, 0, 0, 0, 0, 0], [event("n00000", 5, 6)], task(3))
    found = scored(judged)
    assert (found.incidents, found.positives, found.samples) == (1, 3, 9)
    assert (found.precision.value, found.recall.value, found.f1) == (1.0, 1.0, 1.0)
    assert found.leads_s == (3 * HOUR_S,)
    assert found.false_alarms_per_node_day.value == 0.0
    assert found.component_days == pytest.approx(9 / 24)


def test_f1_is_the_harmonic_mean_of_precision_and_recall():
    events = [event("n00000", at, at) for at in (2, 6, 10)]
    found = scored(one_node([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], events, task(1)))
    assert (found.precision.value, found.recall.value) == (0.5, pytest.approx(1 / 3))
    assert found.f1 == pytest.approx(0.4)


def test_what_is_scored_begins_with_the_first_moment_that_is_judged():
    found = scored(one_node([0.0] * 8, [event("n00000", 0, 3)], task(1), span_h=7))
    assert (found.from_ns // (3600 * SECOND_NS), found.until_ns // (3600 * SECOND_NS)) == (3, 6)


def test_false_alarms_of_a_component_within_the_horizon_count_once():
    values = [[1, 1], [1, 0], [1, 0], [1, 1], [0, 1], [0, 0], [0, 0], [1, 0]]
    judged = judge(values, [], task(3))
    counted = judged.false_alarms(judged.alarms(0.5))
    assert np.argwhere(counted).tolist() == [[0, 0], [0, 1], [3, 0], [3, 1], [7, 0]]
    assert scored(judged).false_alarms_per_node_day.value == pytest.approx(5 / (16 / 24))


def test_an_alarm_after_the_lead_finds_nothing_and_is_not_false():
    of = task(4, lead_s=2 * HOUR_S)
    judged = one_node([0, 0, 0, 0, 1, 0, 0, 0], [event("n00000", 5, 6)], of)
    found = scored(judged)
    assert found.recall.value == 0.0
    assert found.false_alarms_per_node_day.value == 0.0


def test_an_alarm_under_repair_or_before_a_drain_is_neither_right_nor_wrong():
    judged = one_node([0, 0, 0, 1, 1, 0, 0, 0], [event("n00000", 3, 5)], task(1))
    assert not judged.false_alarms(judged.alarms(0.5)).any()


def test_an_incident_without_a_scored_sample_does_not_count():
    judged = one_node([0] * 8, [event("n00000", 0, 1), event("n00000", 5, 6)], task(2))
    assert scored_incidents(judged, judged.alarms(0.5)).incident.tolist() == [1]


def test_a_sample_with_a_partly_observed_horizon_has_no_outcome():
    events = [event("n00000", 8, 9), event("n00000", 13, 14)]
    values = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    judged = one_node(values, events, task(3), actions=[drain("n00000", 10)], span_h=15)
    found = scored(judged)
    assert scored_incidents(judged, judged.alarms(0.5)).incident.tolist() == [0]
    assert (found.recall.value, found.precision.value, found.positives) == (0.0, 0.0, 2)
    assert found.false_alarms_per_node_day.value == 0.0


def test_what_is_scored_ends_a_horizon_before_the_trace():
    events, of, _, noise = many()
    judged = judge(noise, events, of, times_ns=hours(24 * 120, 24), span_h=24 * 120)
    found = scored(judged)
    assert (found.from_ns, found.until_ns) == (0, hours(24 * 119, 24)[-1])
    assert found.auprc.method.startswith("Student's t, clustered by 30 stretches of 4 d")


def test_a_detection_has_its_delay():
    of = task(2, kind="detect")
    judged = one_node([0, 0, 0, 0, 1, 1, 0, 0], [event("n00000", 2, 6, fatal=False)], of)
    assert leads_s(judged, scored_incidents(judged, judged.alarms(0.5))) == (-2 * HOUR_S,)


def test_covering_every_touched_incident_wholly_gains_nothing_by_incident():
    """What point adjustment does to a random score's F1 must not happen here."""
    of = task(24, kind="detect")
    random = np.random.default_rng(1)
    at = range(20, 400, 40)
    events = [event("n00000", start, start + 20, fatal=False) for start in at]
    honest = one_node(random.random(420), events, of)
    found = scored(honest)
    adjusted = honest.score.copy()
    for start in at:
        if (honest.score[start : start + 20] >= 0.5).any():
            adjusted[start : start + 20] = 1.0
    after = scored(one_node(adjusted[:, 0], events, of))
    assert (after.precision, after.recall, after.f1) == (found.precision, found.recall, found.f1)


cells = arrays(np.float64, (12, 3), elements=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))


def test_a_moment_without_a_forecast_ranks_below_all_others():
    events = [event("n00000", 5, 6)]
    message = scored(one_node([0.1, 0.2, 0.8, 0.9, 0.7, 0.1, 0.3, 0.2], events, task(3)))
    silent = scored(one_node([0.1, 0.2, NAN, 0.9, 0.7, 0.1, 0.3, 0.2], events, task(3)))
    assert message.auprc.value == 1.0
    assert silent.auprc.value == pytest.approx((1 + 1 + 3 / 7) / 3)
    assert silent.flags == ("partly_unjudged",)


def many(days=120, nodes=20, seed=0):
    """Return a trace on which a score that sees something is better than a random one."""
    random = np.random.default_rng(seed)
    failures = np.argwhere(random.random((days, nodes)) < 0.01)
    events = [event(f"n{node:05}", 24 * day + 12, 24 * day + 13) for day, node in failures]
    of = task(48)
    blank = judge(np.zeros((days, nodes)), events, of, times_ns=hours(24 * days, 24))
    noise = random.random((days, nodes))
    good = np.clip(0.2 * np.nan_to_num(blank.outcome) + 0.5 * noise, 0, 1)
    return events, of, good, random.random((days, nodes))


def judged_many(values, events, of):
    return judge(values, events, of, times_ns=hours(24 * len(values), 24))


def test_a_score_that_sees_something_is_above_random_and_a_random_one_is_not():
    events, of, good, noise = many()
    other = np.random.default_rng(5).random(noise.shape)
    found = scored(judged_many(good, events, of), others={"random": noise})
    assert found.versus["random"].low > 0
    assert found.auprc.low < found.auprc.value < found.auprc.high
    none = scored(judged_many(other, events, of), others={"random": noise})
    assert none.versus["random"].low < 0
    assert none.auprc.low < none.prevalence < none.auprc.high


def test_few_failures_give_exact_intervals_of_counts_only():
    judged = judge(np.full((50, 2), 0.6), [event("n00000", 40, 41)], task(3))
    found = scored(judged, others={"r": np.zeros((50, 2))})
    assert found.auprc.low is None
    assert found.versus["r"].high is None
    assert found.versus["r"].value == 0.0
    perfect = scored(judged, others={"r": judged.outcome}).versus["r"]
    assert perfect.value == pytest.approx(found.auprc.value - 1.0)
    assert found.auprc.method == "none: 1 failure is fewer than 20"
    assert found.false_alarms_per_node_day.method == "exact, of a Poisson count"
    assert found.recall.low == pytest.approx(0.025)


@pytest.mark.parametrize(("count", "has_interval"), [(FEW - 1, False), (FEW, True)])
def test_twenty_failures_are_enough_for_an_interval(count, has_interval):
    events = [event(f"n{node:05}", 24 * (3 + 5 * node), 24 * (4 + 5 * node)) for node in range(20)]
    noise = np.random.default_rng(0).random((120, 20))
    found = scored(judged_many(noise, events[:count], task(48)), others={"r": 1 - noise})
    assert found.incidents == count
    assert (found.auprc.low is not None) is has_interval
    assert (found.versus["r"].low is not None) is has_interval


def test_a_recall_of_one_has_an_interval():
    events, of, _, noise = many()
    judged = judged_many(noise, events, of)
    due = judged.outcome == 1.0
    found = scored(judged, alarms=due)
    assert found.recall == exact_share(found.incidents, 0)
    assert found.precision == exact_share(found.incidents, 0)
    assert found.recall.low < found.recall.value == 1.0
    some = scored(judged, alarms=due & (noise > 0.3))
    assert some.incidents > len(some.leads_s) >= FEW
    assert some.recall.method.startswith("Student's t")


def test_alarms_that_find_none_of_many_failures_are_not_useful_to_act_on():
    events, of, good, noise = many()
    judged = judged_many(good, events, of)
    none = scored(judged, alarms=judged.outcome == 0.0, others={"random": noise})
    assert (none.recall.low, none.recall.value) == (0.0, 0.0)
    assert none.recall.high > 0
    assert verdict(none).level == "weak"
    all_of_them = scored(judged, alarms=judged.outcome == 1.0, others={"random": noise})
    assert verdict(all_of_them).level == "useful"


def test_no_failure_at_all_is_no_error():
    found = scored(judge(np.full((50, 2), 0.4), [], task(3)))
    assert (found.incidents, found.auprc.value, found.recall.value, found.f1) == (0, 0.0, 0.0, 0.0)
    assert found.curve == ()


@pytest.mark.parametrize(("count", "method"), [(FEW - 1, "exact, of a Poisson"), (FEW, "Student")])
def test_false_alarms_have_a_clustered_interval_from_twenty_on(count, method):
    events, of, _, noise = many()
    judged = judged_many(noise, events, of)
    alarms = np.zeros(noise.shape, dtype=bool)
    for node in range(count):
        alarms[np.flatnonzero(judged.outcome[:, node] == 0.0)[node], node] = True
    found = scored(judged, alarms=alarms)
    assert found.incidents > FEW
    assert found.false_alarms_per_node_day.value == pytest.approx(count / judged.component_days)
    assert found.false_alarms_per_node_day.method.startswith(method)
    assert found.recall == exact_share(0, found.incidents)


@pytest.mark.parametrize(("count", "method"), [(FEW - 1, "exact, of two"), (FEW, "Student")])
def test_what_was_found_has_a_clustered_interval_from_twenty_on(count, method):
    events, of, _, noise = many()
    judged = judged_many(noise, events, of)
    right = scored_incidents(judged, judged.outcome == 1.0)
    alarms = np.zeros(noise.shape, dtype=bool)
    rows = judged.incidents.row[right.incident][:count]
    alarms[right.last[:count], rows] = True
    found = scored(judged, alarms=alarms)
    assert found.recall.value == pytest.approx(count / found.incidents)
    assert found.recall.method.startswith(method)
    assert found.precision == exact_share(count, 0)


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ([0.0, 1.0] * 10, ()),
        ([NAN] + [0.5] * 19, ()),
        ([NAN, NAN] + [0.5] * 18, ("partly_unjudged",)),
        ([1.0 + 1e-9] + [0.5] * 19, ("not_a_probability",)),
        ([-1e-9] + [0.5] * 19, ("not_a_probability",)),
        ([NAN, NAN, 7.0] + [0.5] * 17, ("partly_unjudged", "not_a_probability")),
    ],
)
def test_more_than_a_twentieth_without_a_forecast_and_what_is_no_probability_are_flagged(
    values, flags
):
    assert scored(one_node(values, [], task(3)), flags=("own",)).flags == ("own", *flags)


def test_only_components_that_were_judged_are_counted():
    there = np.full((8, 3), 0.5)
    judged = judge(there, [event("n00001", 0, 9)], task(3))
    assert scored(judged).components == 2


def test_the_curve_has_recall_over_all_failures():
    """The failure without a forecast is missed at each threshold."""
    of = task(1)
    events = [event("n00000", at, at) for at in (1, 3, 5)]
    found = scored(one_node([0.9, 0.8, 0.7, 0.6, NAN, NAN], events, of))
    points = [(p.threshold, p.precision, round(3 * p.recall, 9)) for p in found.curve]
    assert points == [(0.9, 1.0, 1.0), (0.8, 0.5, 1.0), (0.6, 0.5, 2.0)]
    assert scored(one_node([0.9, 0.8, 0.7, 0.6, NAN, NAN], events[2:], of)).curve == ()
    last = scored(one_node([0.5, 0.9, NAN], events[:1], of)).curve
    assert [(p.threshold, p.precision, p.recall) for p in last] == [
        (0.9, 0.0, 0.0),
        (0.5, 0.5, 1.0),
    ]


def test_without_scored_samples_all_results_are_empty():
    judged = judge(np.full((8, 2), 0.6), [], task(3), span_h=2)
    found = scored(judged, others={"random": np.zeros((8, 2))})
    assert np.isnan(judged.outcome).all()
    assert (found.samples, found.components, found.prevalence) == (0, 0, 0.0)
    assert (found.from_ns, found.until_ns) == (0, 7 * 3600 * SECOND_NS)
    assert found.auprc.method == "none: 0 failures are fewer than 20"
    assert found.false_alarms_per_node_day.method == "no component was watched"
    assert (found.brier, found.calibration, found.flags) == (0.0, (), ())
    assert verdict(found).level == "no skill"


def test_calibration_bins_are_as_many_samples_each_and_brier_is_the_mean_square():
    events, of, good, _ = many()
    judged = judged_many(good, events, of)
    found = scored(judged)
    valid = ~np.isnan(judged.outcome)
    assert found.brier == pytest.approx(np.mean((good[valid] - judged.outcome[valid]) ** 2))
    assert len(found.calibration) == 10
    assert max(b.samples for b in found.calibration) - min(b.samples for b in found.calibration) < 2
    assert sum(b.observed * b.samples for b in found.calibration) == pytest.approx(found.positives)
    assert [b.forecast for b in found.calibration] == sorted(b.forecast for b in found.calibration)


def test_a_score_that_is_no_probability_is_ranked_but_not_calibrated():
    events, of, good, _ = many()
    found = scored(judged_many(good * 100, events, of))
    assert found.flags == ("not_a_probability",)
    assert (found.brier, found.calibration) == (0.0, ())
    assert found.auprc == scored(judged_many(good, events, of)).auprc


@settings(deadline=None)
@given(cells, st.floats(0, 10))
def test_the_threshold_is_the_lowest_that_keeps_the_budget(values, budget):
    judged = judge(values, [event("n00001", 6, 7)], task(2))
    threshold = threshold_for(judged, budget)

    def rate(level):
        return judged.false_alarms(judged.alarms(level)).sum() / judged.component_days

    assert rate(threshold) <= budget
    lower = values[values < threshold]
    if len(lower):
        valid = ~np.isnan(judged.outcome)
        lower = values[valid & (values < threshold)]
        assert not len(lower) or rate(lower.max()) > budget


def test_exact_intervals_are_those_of_the_books():
    nothing = exact_rate(0, 10.0)
    assert (nothing.low, nothing.high) == (0.0, pytest.approx(0.3689, abs=1e-4))
    ten = exact_rate(10, 1.0)
    assert (ten.low, ten.high) == (pytest.approx(4.795, abs=1e-3), pytest.approx(18.39, abs=1e-2))
    half = exact_share(5, 5)
    assert (half.low, half.high) == (pytest.approx(0.187, abs=1e-3), pytest.approx(0.813, abs=1e-3))
    assert exact_share(0, 3).low == 0.0
    assert exact_share(3, 0).high == 1.0
    assert exact_share(0, 0).low is None
    assert exact_rate(3, 0.0).low is None


def clusters_of(times, components, horizon_s, every_h=24):
    valid = np.ones((times, components), dtype=bool)
    return Clusters(hours(every_h * times, every_h), valid, horizon_s)


def test_a_stretch_is_two_horizons_or_a_day_and_there_are_five_at_the_least():
    assert clusters_of(100, 5, 7 * 86_400.0).stretches == 8
    assert clusters_of(30 * 24, 5, 3600.0, every_h=1).stretch_s == 86_400.0
    short = clusters_of(16, 50, 7 * 86_400.0)
    assert (short.stretches, short.components) == (5, 50)
    assert short.text == "Student's t, clustered by 5 stretches of 3 d and by 50 components"


@settings(deadline=None)
@given(arrays(np.float64, 30, elements=st.integers(0, 8)), arrays(bool, 30), st.integers(0, 29))
def test_what_a_sample_pulls_is_the_derivative_by_its_weight(values, positive, which):
    positive[0] = True
    weights = np.ones(30)

    def weighted(by):
        weights[which] = 1.0 + by
        return average_precision_score(positive, values, sample_weight=weights)

    derivative = (weighted(1e-5) - weighted(-1e-5)) / 2e-5
    assert average_precision(values, positive).influence[which] == pytest.approx(
        derivative, abs=1e-7
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_alike_in_a_stretch_or_a_component_counts_once(axis):
    random = np.random.default_rng(0)
    shape = (200, 1) if axis == 0 else (1, 100)
    effect = random.normal(size=shape)
    if axis == 0:
        effect = np.repeat(effect[::2], 2, axis=0)  # alike within a stretch of two days
    values = np.broadcast_to(effect, (200, 100)) + 0.0
    error = clusters_of(200, 100, 86_400.0).error(ratio(values.ravel(), np.ones(20_000)).influence)
    assert error == pytest.approx(effect.std() / np.sqrt(100), rel=0.02)


def test_an_interval_of_a_share_has_its_nominal_coverage():
    """Components that differ, and days on which all of them do."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        logit = random.normal(0.0, 1.0, (1, 40)) + random.normal(0.0, 1.0, (40, 1))
        hits = random.random((40, 40)) < 1.0 / (1.0 + np.exp(-logit))
        clusters = clusters_of(40, 40, 43_200.0)
        interval = clusters.share(ratio(hits.ravel().astype(float), np.ones(hits.size)))
        covered += interval.low <= 0.5 <= interval.high
    assert 0.92 <= covered / 300 <= 0.98


def test_a_difference_of_correlated_scores_has_a_narrow_interval():
    events, of, good, noise = many()
    judged = judged_many(good, events, of)
    near = np.clip(good + 0.01 * noise, 0, 1)
    found = scored(judged, others={"near": near, "same": good})
    same, close, own = found.versus["same"], found.versus["near"], found.auprc
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
    assert close.high - close.low < (own.high - own.low) / 2
