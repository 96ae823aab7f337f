"""What hangs together with who failed is told from what chance makes of it."""

import numpy as np
import pytest

from torchloom_core.evaluate.forecasts.relations import (
    APART,
    DAY_NS,
    above_others,
    apart,
    apart_beside,
    known_beside,
    opposed,
    related,
    related_within,
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


@pytest.mark.parametrize(
    ("count", "share", "told"), [(20, 1.0, 1.0), (19, 1.0, 0.0), (20, 0.14, 1.0), (20, 0.09, 0.0)]
)
def test_the_halves_of_a_total_of_twenty_may_be_opposed_by_themselves_but_not_by_half_as_much(
    count, share, told
):
    total = np.arange(float(count))
    swing = np.where(total % 2, 1.0, -1.0) * (1.0 + total / 100)
    assert opposed(total, share * total + swing, share * total - swing) == pytest.approx(told)


@pytest.mark.parametrize("count", [20, 40, 100])
def test_chance_passes_no_bar(count):
    random = np.random.default_rng(count)
    failed = np.arange(count) % 2 == 0
    for _ in range(300):
        first, began, ended, early, late = random.random((5, count))
        assert related(first, began, began + ended) == 0.0
        assert apart(*(np.repeat(first[half], 2) for half in (failed, ~failed))) < APART
        assert opposed(first, early, late) == 0.0


def swapped(count, *pairs):
    """Return so many numbers in their order, but for these pairs."""
    values = np.arange(float(count))
    for one, other in pairs:
        values[[one, other]] = values[[other, one]]
    return values


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(
    ("count", "pairs", "found"),
    [
        (20, [(0, 10)], 0.8496),  # of twenty, 0.8483 is none by chance
        (20, [(0, 10), (11, 13)], 0.0),
        (30, [(0, 21)], 0.8038),
        (30, [(0, 21), (22, 25)], 0.0),
        (19, [], 0.0),
    ],
)
def test_a_first_value_is_related_to_the_end_from_a_great_correlation_on_of_twenty_or_more(
    count, pairs, found, sign
):
    ended = np.arange(float(count))
    told = related(sign * swapped(count, *pairs), np.zeros(count), ended)
    assert told == pytest.approx(found, abs=1e-4)


def test_the_end_and_the_length_are_asked_about_beside_when_each_began():
    random = np.random.default_rng(0)
    began, length = 100 * random.random(60), np.exp(3 * random.normal(size=60))
    ended = began + length
    assert related(ended, began, ended) == pytest.approx(1.0)
    assert related(length, began, ended) == pytest.approx(1.0)
    assert related(began, began, began + 0.1 * length) == 0.0
    assert related(np.ones(60), began, ended) == 0.0


# --- beside another column ---


def aged(count):
    """Return for so many when each began and ended, and how old it was when it came."""
    random = np.random.default_rng(count)
    began, length, age = random.random((3, count))
    return began, began + length, 10.0 * age


@pytest.mark.parametrize(("count", "told"), [(20, True), (19, False)])
def test_twenty_of_which_both_are_known_tell_how_long_they_will_be_there(count, told):
    began, ended, age = aged(count + 4)
    first = {"few": np.full(count + 4, NAN), "age": age.copy(), "goes": age + ended - began}
    first["age"][:2] = first["goes"][2:4] = NAN
    why = (
        f"beside age its first value tells how long {count} components that ended were there, rank "
        "correlation 1.00"
    )
    assert known_beside("goes", first, began, ended) == (why if told else "")
    assert known_beside("age", first, began, ended) == ""


@pytest.mark.parametrize(("pairs", "told"), [([(0, 23)], True), ([(0, 23), (24, 27)], False)])
def test_beside_another_column_nine_tenths_of_a_correlation_are_enough(pairs, told):
    count = 40
    first = {"none": np.zeros(count), "odd": swapped(count, *pairs)}
    why = known_beside("odd", first, np.zeros(count), np.arange(float(count)))
    assert why.endswith("rank correlation 0.90" if told else "")
    assert bool(why) == told


@pytest.mark.filterwarnings("error")
def test_beside_the_greatest_numbers_there_are_nothing_overflows():
    ended = np.arange(1.0, 41.0) * 1e18
    huge = np.where(np.arange(40) % 2, 1e308, -1e308)
    age = np.random.default_rng(0).random(40) * 1e3
    first = {"huge": huge, "age": age, "goes": age + ended / 1e18}
    found = {name: known_beside(name, first, np.zeros(40), ended) for name in first}
    assert [name for name, why in found.items() if why] == ["goes"]


def test_of_very_many_a_thousand_are_asked():
    began, ended, age = aged(2500)
    failed = np.arange(2500) % 2 == 0
    first = {"age": age, "goes": age + ended - began, "fails": age + failed}
    assert " how long 834 components " in known_beside("goes", first, began, ended)
    assert " tells the 417 components " in apart_beside("fails", first, failed)


@pytest.mark.parametrize(("few", "told"), [(20, True), (19, False)])
def test_who_fails_is_told_beside_a_column_of_which_the_other_is_a_straight_function_else(
    few, told
):
    """Of the smallest numbers, too."""
    age = 1e-12 * np.random.default_rng(0).random(few + 24)
    failed = np.arange(few + 24) < few + 2
    first = {"few": np.full(few + 24, NAN), "age": age.copy(), "fails": 3 * age + 1e-9}
    first["fails"] += 4e-12 * failed
    first["age"][[0, -1]] = first["fails"][[1, -2]] = NAN
    why = (
        f"beside age its first value tells the {few} components that failed at any time from the "
        "others, area under the ROC curve 1.000"
    )
    assert apart_beside("fails", first, failed) == (why if told else "")


@pytest.mark.parametrize(("below", "told"), [(1, True), (2, False)])
def test_beside_another_column_nineteen_of_twenty_are_apart(below, told):
    failed = np.arange(40) < 20
    first = {"none": np.zeros(40), "odd": 1.0 * failed}
    first["odd"][:below] = -1.0
    why = apart_beside("odd", first, failed)
    assert why.endswith(" area under the ROC curve 0.950" if told else "")
    assert bool(why) == told


def test_of_two_that_know_it_together_who_tells_more_is_blamed_and_of_equals_each():
    age = np.r_[NAN, np.tile(np.arange(32.0), 2), NAN]
    failed = np.arange(66) < 33
    first = {"less": age - 0.1 * failed, "more": age + 0.1 * failed}
    assert all(apart_beside(name, first, failed) for name in first)
    first["more"] += 5.0 * failed
    assert [name for name in first if apart_beside(name, first, failed)] == ["more"]


def test_what_lies_on_a_line_but_for_rounding_is_not_apart_from_what_lies_on_both_sides_of_it():
    at = np.tile(np.arange(20.0), 3)
    off = np.repeat([0.0, 1.0, -1.0], 20)
    assert apart_beside("odd", {"at": at, "odd": at / 3 + off}, off != 0.0) == ""


def test_of_what_comes_next_only_what_tells_it_beside_time_and_owner_is_related():
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), 8)
    left = random.permutation(40) * (1.0 + owner)
    came = np.tile(np.arange(8.0), 5) * 100
    for values in (owner * 10.0, came, came + 1000 * owner, np.cumsum(came), random.random(40)):
        assert related_within(owner, values, came, came + left) == 0.0
    assert related_within(owner, left, came, came + left) == pytest.approx(1.0)
    assert related_within(owner, -left, came, came + left) == pytest.approx(1.0)
    few = owner < 2
    assert related_within(owner[few], left[few], came[few], (came + left)[few]) == 0.0
