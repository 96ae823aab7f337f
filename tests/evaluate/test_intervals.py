"""Clustered intervals match their formulas, term by term."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit
from scipy.stats import t as student

from tests.evaluate.traces import hours
from torchloom_core.lab.evaluate.forecasts.intervals import (
    Clusters,
    Estimate,
    average_precision,
    ratio,
)

DAY_S = 86_400.0


def of(is_sample, horizon_s=DAY_S / 2, every_h=24):
    is_sample = np.asarray(is_sample, dtype=bool)
    return Clusters(hours(every_h * len(is_sample), every_h), is_sample, horizon_s)


def some(seed, times=14, components=6):
    """Return clusters of stretches of two days, with gaps, and pulls of their samples."""
    random = np.random.default_rng(seed)
    is_sample = random.random((times, components)) < 0.7
    is_sample[:2], is_sample[:, 0] = False, False  # a stretch and a component without a sample
    count, group = is_sample.sum(), np.nonzero(is_sample)[0] // 2
    influence = [random.normal(size=count) + random.normal(size=7)[group] for _ in range(2)]
    return of(is_sample, DAY_S), is_sample, [one - one.mean() for one in influence]


def variance(sums):
    """Return the variance from influences summed by cluster, and its degrees of freedom."""
    squares, count = np.square(list(sums)), len(sums)
    few, spread = max(count - 1, 1), count * squares.var()
    freedom = 2 * squares.sum() ** 2 / spread if spread else math.inf
    return squares.sum() * count / few, min(freedom, few)


@pytest.mark.parametrize("seed", range(12))
def test_the_reach_is_that_of_both_ways_and_no_less_than_of_either(seed):
    clusters, is_sample, (pulls, _) = some(seed)
    time, component = np.nonzero(is_sample)
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


@pytest.mark.parametrize("seed", range(3))
def test_a_share_reaches_as_far_on_the_scale_of_its_logit(seed):
    clusters, _, (pulls, _) = some(seed)
    found = clusters.share(Estimate(0.2, 0.01 * pulls))
    half = clusters.reach(0.01 * pulls) / (0.2 * 0.8)
    assert found.value == 0.2
    assert found.low == pytest.approx(expit(logit(0.2) - half))
    assert found.high == pytest.approx(expit(logit(0.2) + half))
    assert found.method == clusters.text


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
def test_a_difference_combines_both_intervals_and_their_correlation(seed, common):
    clusters, _, (pulls, others) = some(seed)
    others = common * pulls + (1 - abs(common)) * others
    one, other = Estimate(0.4, 0.02 * pulls), Estimate(0.3, 0.01 * others)
    mine, its, found = clusters.share(one), clusters.share(other), clusters.difference(one, other)
    down, up = 0.4 - mine.low, mine.high - 0.4
    its_down, its_up = 0.3 - its.low, its.high - 0.3
    alike = max(-1.0, min(1.0, correlation(clusters, one.influence, other.influence)))

    def reach(own, same, opposite):
        together = (own - same) ** 2 if alike > 0 else (own + opposite) ** 2
        apart = own**2 + opposite**2
        return math.sqrt(abs(alike) * together + (1 - abs(alike)) * apart)

    assert found.value == pytest.approx(0.1)
    assert found.low == pytest.approx(0.1 - reach(down, its_down, its_up))
    assert found.high == pytest.approx(0.1 + reach(up, its_up, its_down))
    assert found.method == clusters.text


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
        assert found.influence[i] == pytest.approx((moved - found.value) / step, abs=1e-4)


def test_without_a_positive_the_average_precision_is_0_and_nothing_pulls_it():
    found = average_precision(np.arange(3.0), np.zeros(3, dtype=bool))
    assert found.value == 0.0
    assert found.influence.tolist() == [0.0, 0.0, 0.0]
