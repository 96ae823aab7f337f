"""Intervals of what is alike in time and component are what their formulas say, term by term."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import t as student

from tests.evaluate.traces import hours
from torchloom_core.evaluate.forecasts.intervals import (
    Clusters,
    Estimate,
    average_precision,
    exact_rate,
    exact_share,
    ratio,
)

DAY_S = 86_400.0


def of(known, horizon_s=DAY_S / 2, every_h=24):
    known = np.asarray(known, dtype=bool)
    return Clusters(hours(every_h * len(known), every_h), known, horizon_s)


def full(times, components, **more):
    return of(np.ones((times, components)), **more)


def some(seed, times=14, components=6):
    """Return clusters of stretches of two days, with gaps, and pulls of their samples."""
    random = np.random.default_rng(seed)
    known = random.random((times, components)) < 0.7
    known[:2], known[:, 0] = False, False  # a stretch and a component without a sample
    pulls = [random.normal(size=known.sum()) + random.normal(size=7)[np.nonzero(known)[0] // 2]
             for _ in range(2)]  # fmt: skip
    return of(known, DAY_S), known, [one - one.mean() for one in pulls]


def variance(sums):
    """Return that of a figure whose pulls were summed by cluster, and its degrees of freedom."""
    squares, count = np.square(list(sums)), len(sums)
    few, spread = max(count - 1, 1), count * squares.var()
    freedom = 2 * squares.sum() ** 2 / spread if spread else math.inf
    return squares.sum() * count / few, min(freedom, few)


@pytest.mark.parametrize("seed", range(12))
def test_the_reach_is_that_of_both_ways_and_no_less_than_of_either(seed):
    clusters, known, (pulls, _) = some(seed)
    time, component = np.nonzero(known)
    stretches, components = sorted(set(time // 2)), sorted(set(component))
    assert (clusters.stretches, clusters.components) == (len(stretches), len(components)) == (6, 5)
    of_time = variance([pulls[time // 2 == one].sum() for one in stretches])
    of_component = variance([pulls[component == one].sum() for one in components])
    by_cell = sum(
        pulls[(time // 2 == one) & (component == other)].sum() ** 2
        for one in stretches
        for other in components
    )
    both = of_time[0] + of_component[0] - by_cell
    apart = of_time[0] ** 2 / of_time[1] + of_component[0] ** 2 / of_component[1]
    value, freedom = max(of_time, of_component, (both, both**2 / apart))
    assert clusters.error(pulls) == pytest.approx(math.sqrt(value))
    reach = math.sqrt(value) * student.ppf(0.975, max(freedom, 1.0))
    assert clusters.reach(pulls) == pytest.approx(reach)


@pytest.mark.parametrize("pull", [1.0, 1e-3])
def test_where_two_of_forty_clusters_pull_all_the_reach_is_that_of_few(pull):
    reach = full(40, 1).reach(np.array([pull, -pull, *np.zeros(38)]))
    assert reach == pytest.approx(pull * math.sqrt(2 * 40 / 39) * student.ppf(0.975, 8 / 1.9))


def test_one_stretch_or_one_component_is_no_division_by_zero():
    one = full(1, 3)
    assert one.stretches == 1
    assert one.error(np.array([1.0, 1.0, -2.0])) == pytest.approx(math.sqrt(6 * 3 / 2))
    assert full(3, 1).error(np.array([1.0, 1.0, -2.0])) == pytest.approx(math.sqrt(6 * 3 / 2))
    nothing = full(4, 4)
    assert (nothing.error(np.zeros(16)), nothing.reach(np.zeros(16))) == (0.0, 0.0)


def test_two_clusters_have_one_degree_of_freedom():
    two = full(1, 2)
    assert two.error(np.array([1.0, -1.0])) == 2.0
    assert two.reach(np.array([1.0, -1.0])) == pytest.approx(2.0 * student.ppf(0.975, 1))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_a_figure_in_another_unit_reaches_as_far_in_that_unit(scale):
    clusters, _, (pulls, _) = some(0)
    assert clusters.reach(scale * pulls) == pytest.approx(scale * clusters.reach(pulls))


def test_it_makes_no_difference_when_the_time_begins():
    late = Clusters(hours(24 * 10, 24) + 5 * 10**17, np.ones((10, 2), dtype=bool), DAY_S)
    assert late.stretches == 5
    assert late.stretch_s == pytest.approx(9 * DAY_S / 5)


@pytest.mark.parametrize(
    ("times", "every_h", "horizon_s", "stretches", "stretch_s"),
    [
        (11, 24, DAY_S, 6, 2 * DAY_S),
        (10, 24, DAY_S, 5, 9 * DAY_S / 5),
        (6, 24, 0.0, 6, DAY_S),
        (5, 24, 0.0, 5, 4 * DAY_S / 5),
        (11, 24, 0.51 * DAY_S, 10, 1.02 * DAY_S),
    ],
)
def test_time_is_cut_into_two_horizons_a_day_or_a_fifth(
    times, every_h, horizon_s, stretches, stretch_s
):
    clusters = full(times, 2, horizon_s=horizon_s, every_h=every_h)
    assert clusters.stretches == stretches
    assert clusters.stretch_s == pytest.approx(stretch_s)


def test_the_text_says_by_what_it_is_clustered():
    assert full(400, 1).text == (
        "Student's t, clustered by 400 stretches of 1 d and by 1 component"
    )
    assert full(400, 2).text.endswith(" and by 2 components")


@pytest.mark.parametrize("seed", range(3))
def test_a_share_reaches_as_far_on_the_scale_of_its_logit(seed):
    clusters, _, (pulls, _) = some(seed)
    found = clusters.share(Estimate(0.2, 0.01 * pulls))
    half = clusters.reach(0.01 * pulls) / (0.2 * 0.8)
    assert found.value == 0.2
    assert found.low == pytest.approx(expit(logit(0.2) - half))
    assert found.high == pytest.approx(expit(logit(0.2) + half))
    assert found.method == clusters.text


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_none_and_all_have_no_width(value):
    clusters, _, (pulls, _) = some(0)
    found = clusters.share(Estimate(value, pulls))
    assert (found.low, found.value, found.high) == (value, value, value)


def test_a_rate_reaches_as_far_on_the_scale_of_its_logarithm_and_stays_finite():
    clusters, _, (pulls, _) = some(0)
    found = clusters.rate(Estimate(3.0, pulls))
    factor = math.exp(clusters.reach(pulls) / 3.0)
    assert (found.low, found.value, found.high) == pytest.approx((3.0 / factor, 3.0, 3.0 * factor))
    assert found.method == clusters.text
    wide = clusters.rate(Estimate(1e-3, pulls))
    assert 0.0 < wide.low < wide.value < wide.high < math.inf


def correlation(clusters, one, other):
    return (clusters.error(one + other) ** 2 - clusters.error(one - other) ** 2) / (
        4 * clusters.error(one) * clusters.error(other)
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("common", [-0.9, -0.3, 0.3, 0.9])
def test_a_difference_is_told_from_both_intervals_and_how_they_move_together(seed, common):
    clusters, _, (pulls, others) = some(seed)
    others = common * pulls + (1 - abs(common)) * others
    one, other = Estimate(0.4, 0.02 * pulls), Estimate(0.3, 0.01 * others)
    mine, its, found = clusters.share(one), clusters.share(other), clusters.difference(one, other)
    down, up = 0.4 - mine.low, mine.high - 0.4
    its_down, its_up = 0.3 - its.low, its.high - 0.3
    alike = max(-1.0, min(1.0, correlation(clusters, one.pulls, other.pulls)))

    def reach(own, same, opposite):
        together = (own - same) ** 2 if alike > 0 else (own + opposite) ** 2
        apart = own**2 + opposite**2
        return math.sqrt(abs(alike) * together + (1 - abs(alike)) * apart)

    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1 - reach(down, its_down, its_up))
    assert found.high == pytest.approx(0.1 + reach(up, its_up, its_down))
    assert found.method == clusters.text


def test_a_difference_to_what_has_no_error_is_as_wide_as_the_other_alone():
    clusters, _, (pulls, _) = some(0)
    one, sure = Estimate(0.4, 0.02 * pulls), Estimate(0.0, 0.0 * pulls)
    alone, found = clusters.share(one), clusters.difference(one, sure)
    assert (found.low, found.high) == pytest.approx((alone.low, alone.high))


def test_what_moves_wholly_together_or_apart_is_no_more_than_that():
    clusters, _, (pulls, _) = some(1)
    one = Estimate(0.4, 0.02 * pulls)
    alone = clusters.share(one)
    same = clusters.difference(one, one)
    assert (same.low, same.high) == pytest.approx((0.0, 0.0), abs=1e-9)
    apart = clusters.difference(one, Estimate(0.4, -0.02 * pulls))
    assert apart.high == pytest.approx((alone.high - 0.4) + (0.4 - alone.low))


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 5.0), min_size=2, max_size=9), st.data())
def test_a_ratio_of_sums_and_what_each_sample_pulls_it(below, data):
    above = data.draw(st.lists(st.floats(0, 5), min_size=len(below), max_size=len(below)))
    above, below = np.array(above), np.array(below) + 0.5
    found = ratio(above, below)
    assert found.value == pytest.approx(above.sum() / below.sum())
    step = 1e-6
    for i in range(len(above)):
        weight = np.ones(len(above))
        weight[i] += step
        moved = (weight @ above) / (weight @ below)
        assert found.pulls[i] == pytest.approx((moved - found.value) / step, abs=1e-4)


def test_without_a_positive_the_average_precision_is_0_and_nothing_pulls_it():
    found = average_precision(np.arange(3.0), np.zeros(3, dtype=bool))
    assert found.value == 0.0
    assert found.pulls.tolist() == [0.0, 0.0, 0.0]


def test_exact_intervals_say_of_what_they_are_and_where_there_is_nothing_to_tell():
    rate = exact_rate(3, 2.0)
    assert (rate.value, rate.method) == (1.5, "exact, of a Poisson count")
    assert rate.low < 1.5 < rate.high
    nothing = exact_rate(0, 0.0)
    assert (nothing.value, nothing.low, nothing.method) == (0.0, None, "nothing was watched")
    assert exact_rate(0, 0.5).low == 0.0
    share = exact_share(1, 3)
    assert (share.value, share.method) == (0.25, "exact, of two Poisson counts")
    assert (share.low, share.high) == pytest.approx((0.00631, 0.80588), rel=1e-3)
    none = exact_share(0, 0)
    assert (none.value, none.low, none.high, none.method) == (0.0, None, None, "nothing to count")
    all_of_one = exact_share(1, 0)
    assert (all_of_one.low, all_of_one.high) == (pytest.approx(0.025), 1.0)
    none_of_one = exact_share(0, 1)
    assert (none_of_one.low, none_of_one.high) == (0.0, pytest.approx(0.975))
