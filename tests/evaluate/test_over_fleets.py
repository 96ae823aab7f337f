"""Results over several traces, each of which is one fleet with equal weight."""

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from tests.evaluate.report.reports import interval, score
from tests.evaluate.traces import event, hours, judge, task
from torchloom_core.lab.evaluate.forecasts.scores import Pool, auprc_of
from torchloom_core.lab.evaluate.over_fleets import (
    difference_over_fleets,
    mean_over_fleets,
    scores_over_fleets,
    share_over_fleets,
)
from torchloom_core.lab.learning.forecast_score import Interval


def test_the_interval_is_students_t_over_fleets():
    figures = [0.1, 0.3, 0.2, 0.6]
    found = mean_over_fleets(figures, 4)
    low, high = ttest_1samp(figures, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.value == pytest.approx(0.3)
    assert found.method == "Student's t over 4 traces, equally weighted"


def test_two_fleets_have_a_mean_but_no_interval():
    found = mean_over_fleets([0.1, 0.3], 2)
    assert (found.value, found.low, found.high) == (pytest.approx(0.2), None, None)
    assert found.method == "none: need 3 traces, was 2 traces"


def test_a_fleet_without_a_value_is_excluded_and_counted_in_the_method():
    assert "3 of 5 traces" in mean_over_fleets([0.1, 0.2, 0.3], 5).method
    assert mean_over_fleets([], 5).method == "none: need 3 traces, was 0 of 5 traces"


def test_no_share_leaves_its_scale_and_no_rate_is_below_zero():
    wide = share_over_fleets([0.0, 1.0, 0.5], 3)
    assert (wide.low, wide.high) == (0.0, 1.0)
    assert share_over_fleets([0.0, 9.0, 0.0], 3, math.inf).low == 0.0
    assert mean_over_fleets([0.0, 9.0, 0.0], 3).low < 0.0


@pytest.mark.parametrize("figure", [0.0, 0.1])
def test_fleets_that_do_not_differ_are_no_certainty(figure):
    found = share_over_fleets([figure] * 3, 3)
    assert (found.value, found.low, found.high) == (pytest.approx(figure), None, None)
    assert found.method == "none: need figures that differ, was one value in all"


def test_a_difference_counts_the_fleets_ahead_and_behind():
    found = difference_over_fleets([0.1, -0.2, 0.0, 0.4], 4)
    assert (found.ahead, found.behind) == (2, 1)


def test_the_interval_holds_the_mean_of_fleets_that_differ():
    """For five fleets, 2,000 times; the variation within a trace does not matter."""
    random = np.random.default_rng(1)
    drawn = random.normal(0.2, 0.1, (2000, 5))
    found = [mean_over_fleets(figures, 5) for figures in drawn]
    held = np.mean([one.low <= 0.2 <= one.high for one in found])
    assert 0.935 <= held <= 0.965
    narrow = float(t.ppf(0.975, 4)) / 1.96  # what a normal deviate would leave out
    assert narrow > 1.4


def of_fleets(*scores):
    pool = Pool()
    for one in scores:
        pool.add(one.predictor, judge(np.zeros((4, 1)), [event("n00000", 3)], task(2)))
    return scores_over_fleets([[one] for one in scores], pool)[0]


def test_fleets_count_the_same_in_the_mean_and_by_their_size_where_they_are_pooled():
    small = score(
        incidents=10, leads_s=(60.0,) * 5, recall=interval(0.5), component_days=100.0,
        false_alarms_per_node_day=interval(0.1), precision=interval(1 / 3),
    )  # fmt: skip
    large = score(
        incidents=90, leads_s=(60.0,) * 9, recall=interval(0.1), component_days=900.0,
        false_alarms_per_node_day=interval(0.01), precision=interval(0.5),
    )  # fmt: skip
    found = of_fleets(small, large, large)
    assert found.recall.value == pytest.approx(0.7 / 3)
    assert found.pooled.recall == pytest.approx((5 + 9 + 9) / 190)
    assert found.pooled.false_alarms_per_node_day == pytest.approx((10 + 9 + 9) / 1900)
    assert found.pooled.precision == pytest.approx(23 / (23 + 28))


def test_a_fleet_without_a_failure_has_no_auprc_and_no_recall_and_still_false_alarms():
    quiet = score(
        positives=0, incidents=0, leads_s=(), auprc=Interval(value=0.0), prevalence=0.0,
        recall=Interval(value=0.0), false_alarms_per_node_day=interval(0.5),
        versus={"random": Interval(value=0.0)},
    )  # fmt: skip
    busy = score(auprc=interval(0.4), versus={"random": interval(0.3)})
    found = of_fleets(busy, quiet, busy)
    assert found.auprc.value == pytest.approx(0.4)
    assert found.versus["random"].value == pytest.approx(0.3)
    assert "was 2 of 3 traces" in found.auprc.method
    assert found.prevalence == pytest.approx(0.05)
    assert found.false_alarms_per_node_day.value == pytest.approx((0.02 + 0.5 + 0.02) / 3)


def test_what_is_pooled_ranks_the_moments_of_all_traces_together():
    """A predictor that is right within each trace, and speaks louder where nothing fails."""
    quiet = judge([[0.1], [0.2], [0.1], [0.1]], [event("n00000", 2)], task(1), times_ns=hours(4))
    loud = judge([[0.8], [0.9], [0.8], [0.8]], [event("n00000", 2)], task(1), times_ns=hours(4))
    assert auprc_of(quiet).value == auprc_of(loud).value == 1.0
    pool = Pool()
    pool.add("a", quiet)
    pool.add("a", loud)
    assert pool.auprc("a") == pytest.approx((1.0 + 2 / 3) / 2)  # .9, .8, .2, .1
