"""What hangs together with who failed is told from what chance makes of it."""

import numpy as np
import pytest

from torchloom_core.evaluate.forecasts.relations import (
    APART,
    DAY_NS,
    above_others,
    apart,
    opposed,
    related,
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


def test_who_fails_just_a_day_apart_may_have_failed_together_and_a_moment_more_not():
    group = np.zeros(3, dtype=np.int64)
    for apart_ns, wanted in ((DAY_NS, 0.0), (1.001 * DAY_NS, 0.5)):
        share = share_of_others(group, np.array([0.0, apart_ns, NAN]))
        assert share.tolist() == [wanted, wanted, 1.0]


def test_a_rack_that_went_down_at_once_tells_nothing_of_its_own():
    share = share_of_others(np.array([0, 0, 0, 1, 1]), np.array([5.0, 6.0, 7.0, NAN, NAN]))
    assert np.isnan(share[:3]).all()
    assert share[3:].tolist() == [0.0, 0.0]


def test_what_is_above_is_told_from_what_is_apart_and_of_few_nothing_is_said():
    low, high = np.zeros(20), np.ones(20)
    assert (above_others(high, low), above_others(low, high)) == (1.0, 0.0)
    assert (apart(high, low), apart(low, high)) == (1.0, 1.0)
    assert above_others(np.r_[low, high], np.r_[low, high]) == 0.5
    assert (above_others(high[1:], low), apart(high, low[1:])) == (0.5, 0.5)


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
            found[name] += opposed(value, early, late) > 0.0
    assert min(found["total"], found["log"]) >= 95
    assert [found[name] for name in ("rate", "earlier", "noise", "first half")] == [0, 0, 0, 0]


def test_where_few_fail_twice_the_halves_are_opposed_by_themselves_and_no_number_is_to_blame():
    random = np.random.default_rng(0)
    early = (random.random(60) < 0.5).astype(float)
    assert opposed(random.normal(size=60), early, 1.0 - early) == 0.0
    assert opposed(np.arange(19.0), np.arange(19.0), -np.arange(19.0)) == 0.0


@pytest.mark.parametrize("count", [20, 40, 100])
def test_chance_passes_no_bar(count):
    random = np.random.default_rng(count)
    failed = np.arange(count) % 2 == 0
    for _ in range(300):
        first, began, ended, early, late = random.random((5, count))
        assert related(first, began, began + ended) == 0.0
        assert apart(*(np.repeat(first[half], 2) for half in (failed, ~failed))) < APART
        assert opposed(first, early, late) == 0.0
