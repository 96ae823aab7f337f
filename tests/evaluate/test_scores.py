"""Scores by hand, against scikit-learn, and with what a random score must come to."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score

from tests.evaluate.traces import HOUR_S, drain, event, hours, judge, task
from torchloom_core.clock import SECOND_NS
from torchloom_core.evaluate.forecasts.alarms import leads_s, threshold_for, told
from torchloom_core.evaluate.forecasts.intervals import (
    AveragePrecision,
    blocks_of,
    bootstrap,
    exact_rate,
    exact_share,
)
from torchloom_core.evaluate.forecasts.scores import score
from torchloom_core.learning.forecast_score import FEW
from torchloom_core.learning.skill import has_skill

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


def test_an_incident_with_no_moment_to_tell_it_at_is_not_asked_for():
    judged = one_node([0] * 8, [event("n00000", 0, 1), event("n00000", 5, 6)], task(2))
    assert told(judged, judged.alarms(0.5)).incident.tolist() == [1]


def test_a_moment_whose_horizon_was_not_wholly_seen_tells_no_failure():
    events = [event("n00000", 8, 9), event("n00000", 13, 14)]
    values = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1, 1]
    judged = one_node(values, events, task(3), actions=[drain("n00000", 10)], span_h=15)
    found = scored(judged)
    assert told(judged, judged.alarms(0.5)).incident.tolist() == [0]
    assert (found.recall.value, found.precision.value, found.positives) == (0.0, 0.0, 2)
    assert found.false_alarms_per_node_day.value == 0.0


def test_what_is_scored_ends_a_horizon_before_the_trace():
    events, of, _, noise = many()
    judged = judge(noise, events, of, times_ns=hours(24 * 120, 24), span_h=24 * 120)
    found = scored(judged)
    assert (found.from_ns, found.until_ns) == (0, hours(24 * 119, 24)[-1])
    assert found.auprc.method.startswith("bootstrap over 60 blocks of 2 d")


def test_a_detection_tells_how_late_it_was():
    of = task(2, kind="detect")
    judged = one_node([0, 0, 0, 0, 1, 1, 0, 0], [event("n00000", 2, 6, fatal=False)], of)
    assert leads_s(judged, told(judged, judged.alarms(0.5))) == (-2 * HOUR_S,)


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


@settings(deadline=None)
@given(cells, arrays(np.bool_, (12, 3)), st.integers(0, 100))
def test_weighted_average_precision_is_scikit_learns(values, positive, seed):
    if not positive.any():
        positive[3, 1] = True
    block = np.repeat(np.arange(12), 3)
    mine = AveragePrecision(values.ravel(), positive.ravel(), block, 12)
    assert mine.value == pytest.approx(average_precision_score(positive.ravel(), values.ravel()))
    weights = np.random.default_rng(seed).integers(0, 4, (1, 12)).astype(float)
    weight = weights[0][block]
    if (weight * positive.ravel()).sum() == 0:
        assert np.isnan(mine(weights)[0])
    else:
        wanted = average_precision_score(positive.ravel(), values.ravel(), sample_weight=weight)
        assert mine(weights)[0] == pytest.approx(wanted)


def test_a_moment_without_a_forecast_ranks_below_all_others():
    events = [event("n00000", 5, 6)]
    said = scored(one_node([0.1, 0.2, 0.8, 0.9, 0.7, 0.1, 0.3, 0.2], events, task(3)))
    silent = scored(one_node([0.1, 0.2, NAN, 0.9, 0.7, 0.1, 0.3, 0.2], events, task(3)))
    assert said.auprc.value == 1.0
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


def test_a_paired_difference_to_itself_is_nothing():
    events, of, good, _ = many()
    same = scored(judged_many(good, events, of), others={"same": good}).versus["same"]
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)


def test_the_same_seed_gives_the_same_score_and_another_one_another():
    events, of, good, noise = many()
    judged = judged_many(good, events, of)
    one, same, other = (scored(judged, others={"r": noise}, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one.auprc != other.auprc


def test_few_failures_give_exact_intervals_of_counts_only():
    judged = judge(np.full((50, 2), 0.6), [event("n00000", 40, 41)], task(3))
    found = scored(judged, others={"r": np.zeros((50, 2))})
    assert found.auprc.low is None
    assert found.versus["r"].high is None
    assert found.auprc.method == "none: 1 failures are fewer than 20"
    assert found.false_alarms_per_node_day.method == "exact, of a Poisson count"
    assert found.recall.low == pytest.approx(0.025)


def test_what_every_resample_has_alike_is_not_told_as_sure():
    """Resamples of failures that were all found, without a false alarm, are so too."""
    events, of, _, noise = many()
    judged = judged_many(noise, events, of)
    due = judged.outcome == 1.0
    found = scored(judged, alarms=due)
    assert found.recall == exact_share(found.incidents, 0)
    assert found.precision == exact_share(found.incidents, 0)
    assert found.recall.low < found.recall.value == 1.0
    some = scored(judged, alarms=due & (noise > 0.3))
    assert some.incidents > len(some.leads_s) >= FEW
    assert some.recall.method.startswith("bootstrap over ")


def test_alarms_that_find_none_of_many_failures_have_no_skill_to_act_on():
    events, of, good, noise = many()
    judged = judged_many(good, events, of)
    none = scored(judged, alarms=judged.outcome == 0.0, others={"random": noise})
    assert (none.recall.low, none.recall.value) == (0.0, 0.0)
    assert none.recall.high > 0
    assert not has_skill(none)
    all_of_them = scored(judged, alarms=judged.outcome == 1.0, others={"random": noise})
    assert has_skill(all_of_them)


def test_no_failure_at_all_is_no_error():
    found = scored(judge(np.full((50, 2), 0.4), [], task(3)))
    assert (found.incidents, found.auprc.value, found.recall.value, found.f1) == (0, 0.0, 0.0, 0.0)
    assert found.curve == ()


def test_calibration_bins_are_as_many_samples_each_and_brier_is_the_mean_square():
    events, of, good, _ = many()
    judged = judged_many(good, events, of)
    found = scored(judged)
    known = ~np.isnan(judged.outcome)
    assert found.brier == pytest.approx(np.mean((good[known] - judged.outcome[known]) ** 2))
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


def test_the_curve_is_short_and_goes_from_high_thresholds_to_low_ones():
    events, of, good, _ = many(days=200, nodes=40)
    curve = scored(judged_many(good, events, of)).curve
    assert 100 < len(curve) <= 200
    assert [p.threshold for p in curve] == sorted((p.threshold for p in curve), reverse=True)
    assert [p.recall for p in curve] == sorted(p.recall for p in curve)
    assert curve[-1].recall == 1.0


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
        known = ~np.isnan(judged.outcome)
        lower = values[known & (values < threshold)]
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


def test_blocks_keep_a_horizon_together_or_else_a_component():
    daily = hours(24 * 100, 24)
    assert blocks_of(daily, 5, 7 * 86_400.0).count == 15
    assert blocks_of(hours(24 * 30), 5, 3600.0).what == "blocks of 1 d"
    short = blocks_of(daily[:16], 50, 7 * 86_400.0)
    assert (short.count, short.what) == (50, "components")
    assert blocks_of(daily[:16], 5000, 7 * 86_400.0).count == 1000
    assert blocks_of(daily[:16], 5, 7 * 86_400.0).count == 10


def test_a_bootstrap_covers_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        sample = random.normal(size=60)
        weights = blocks_of(hours(24 * 60, 24), 1, 1.0).weights(500, int(random.integers(1000)))
        interval = bootstrap(
            float(sample.mean()), lambda w, s=sample: w @ s / w.sum(axis=1), weights, "days"
        )
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 200 <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("times", "nodes"), [(40, 22_892), (12_960, 12)])
def test_large_tables_are_scored(times, nodes):
    random = np.random.default_rng(2)
    every_ns = (86_400 if nodes > 12 else 300) * SECOND_NS
    times_ns = np.arange(times, dtype=np.int64) * every_ns
    of = task(168 if nodes > 12 else 1)
    last_h = int(times_ns[-1] // (3600 * SECOND_NS))
    events = [
        event(f"n{node:05}", int(at), int(at) + 1, id=str(i))
        for i, (node, at) in enumerate(
            zip(random.integers(0, nodes, 120), random.integers(10, last_h, 120), strict=True)
        )
    ]
    judged = judge(random.random((times, nodes)), events, of, times_ns=times_ns)
    found = scored(judged, others={"random": random.random((times, nodes))})
    assert found.incidents > 80
    assert found.auprc.low < found.auprc.high
