"""Relations between columns and failures are distinguished from chance."""

import numpy as np
import pytest

from torchloom_core.lab.evaluate.forecasts.relations import (
    DAY_NS,
    SEPARATED,
    auc,
    auc_either_way,
    correlation_within,
    lifetime_correlation,
    lifetime_leak_given,
    opposite_correlation,
    separation_given,
    share_of_others,
)

NAN = np.nan


def test_the_share_is_of_the_others_and_not_of_those_that_failed_within_a_day():
    group = np.array([0, 0, 0, 0, 1, 1, 2])
    days = np.array([1.0, 1.9, 5.0, NAN, NAN, 3.0, 4.0])
    share = share_of_others(group, days * DAY_NS)
    # The first two may have failed together: of the two others of each, one failed.
    assert share[:2].tolist() == [1 / 2, 1 / 2]
    assert share[2:6].tolist() == [2 / 3, 1.0, 1.0, 0.0]
    assert np.isnan(share[6])


def test_a_simultaneous_outage_of_a_rack_is_no_evidence():
    share = share_of_others(np.array([0, 0, 0, 1, 1]), np.array([5.0, 6.0, 7.0, NAN, NAN]))
    assert np.isnan(share[:3]).all()
    assert share[3:].tolist() == [0.0, 0.0]


def test_auc_has_a_direction_and_is_one_half_with_few_values():
    low, high = np.zeros(20), np.ones(20)
    assert (auc(high, low), auc(low, high)) == (1.0, 0.0)
    assert (auc_either_way(high, low), auc_either_way(low, high)) == (1.0, 1.0)
    assert auc(np.r_[low, high], np.r_[low, high]) == 0.5
    assert (auc(high[1:], low), auc_either_way(high, low[1:])) == (0.5, 0.5)


def test_a_total_is_opposed_and_what_was_there_before_is_not():
    random = np.random.default_rng(0)
    found = {"total": 0, "log": 0, "rate": 0, "earlier": 0, "noise": 0, "first half": 0}
    for _ in range(100):
        rate = random.gamma(0.8, 3.0, 60) + 0.7
        early, late, before = (random.poisson(rate).astype(float) for _ in range(3))
        values = {
            "total": early + late,
            "log": np.log1p(early + late),
            "rate": rate,
            "earlier": before,
            "noise": random.normal(size=60),
            "first half": early,
        }
        for name, value in values.items():
            found[name] += opposite_correlation(value, early, late) > 0.0
    assert min(found["total"], found["log"]) >= 95
    assert [found[name] for name in ("rate", "earlier", "noise", "first half")] == [0, 0, 0, 0]


@pytest.mark.parametrize("count", [20, 40, 100])
def test_chance_passes_no_bar(count):
    random = np.random.default_rng(count)
    failed = np.arange(count) % 2 == 0
    for _ in range(300):
        first, began, ended, early, late = random.random((5, count))
        assert lifetime_correlation(first, began, began + ended) == 0.0
        assert (
            auc_either_way(*(np.repeat(first[half], 2) for half in (failed, ~failed))) < SEPARATED
        )
        assert opposite_correlation(first, early, late) == 0.0


def test_ends_and_lifetimes_are_correlated_given_the_start():
    random = np.random.default_rng(0)
    began, length = 100 * random.random(60), np.exp(3 * random.normal(size=60))
    ended = began + length
    assert lifetime_correlation(ended, began, ended) == pytest.approx(1.0)
    assert lifetime_correlation(length, began, ended) == pytest.approx(1.0)
    assert lifetime_correlation(began, began, began + 0.1 * length) == 0.0
    assert lifetime_correlation(np.ones(60), began, ended) == 0.0


# --- beside another column ---


@pytest.mark.filterwarnings("error")
def test_the_largest_floats_do_not_overflow():
    ended = np.arange(1.0, 41.0) * 1e18
    huge = np.where(np.arange(40) % 2, 1e308, -1e308)
    age = np.random.default_rng(0).random(40) * 1e3
    first = {"huge": huge, "age": age, "goes": age + ended / 1e18}
    found = {name: lifetime_leak_given(name, first, np.zeros(40), ended) for name in first}
    assert [name for name, why in found.items() if why] == ["goes"]


def test_of_two_columns_that_leak_together_the_better_one_is_flagged_or_both_if_equal():
    age = np.r_[NAN, np.tile(np.arange(32.0), 2), NAN]
    failed = np.arange(66) < 33
    first = {"less": age - 0.1 * failed, "more": age + 0.1 * failed}
    assert all(separation_given(name, first, failed) for name in first)
    first["more"] += 5.0 * failed
    assert [name for name in first if separation_given(name, first, failed)] == ["more"]


def test_correlation_within_owners_ignores_time_and_owner():
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), 8)
    left = random.permutation(40) * (1.0 + owner)
    came = np.tile(np.arange(8.0), 5) * 100
    for values in (owner * 10.0, came, came + 1000 * owner, np.cumsum(came), random.random(40)):
        assert correlation_within(owner, values, came, came + left) == 0.0
    assert correlation_within(owner, left, came, came + left) == pytest.approx(1.0)
    assert correlation_within(owner, -left, came, came + left) == pytest.approx(1.0)
    few = owner < 2
    assert correlation_within(owner[few], left[few], came[few], (came + left)[few]) == 0.0
