"""What became of components, and what who has the same as whom tells of it."""

import numpy as np
import pytest

from torchloom_core.evaluate.forecasts.fates import Fates, fates_of, told_by_group, told_by_total
from torchloom_core.evaluate.forecasts.labels import Incidents
from torchloom_core.evaluate.forecasts.relations import DAY_NS

NAN = np.nan


def failing(days):
    """Return the fates of components that failed on these days, NaN never."""
    days = np.asarray(days, dtype=float)
    return Fates(days * DAY_NS, np.zeros(len(days)), np.zeros(len(days)))


def test_who_failed_first_when_and_how_often_in_each_half_is_told_of_all():
    row, start_ns = np.array([1, 0, 1, 1]), np.array([5, 10, 10, 20])
    found = Incidents(row, start_ns, start_ns + 1, np.ones(4, dtype=np.int64))
    fates = fates_of(found, 3, middle_ns=10)
    np.testing.assert_array_equal(fates.failed_ns, [10.0, 5.0, NAN])
    assert (fates.early.tolist(), fates.late.tolist()) == ([0, 1, 0], [1, 2, 0])
    assert {half.dtype.kind for half in fates} == {"f"}


def test_others_share_the_fates_of_what_they_hang_on():
    fates = Fates(np.array([10.0, 5.0, NAN]), np.array([0.0, 1, 0]), np.array([1.0, 2, 0]))
    of = fates.of([[0, 1], [2], [], [2, 0]])
    np.testing.assert_array_equal(of.failed_ns, [5.0, NAN, NAN, 10.0])
    assert (of.early.tolist(), of.late.tolist()) == ([1, 0, 0, 0], [3, 0, 0, 1])


def test_of_nobody_nothing_is_told():
    assert told_by_group([], failing([])) == ""
    assert told_by_total(np.zeros(0), failing([])) == ""


def test_the_others_of_a_group_tell_of_those_that_are_not_alone():
    """Each fails a day and more after the others; two that failed have nobody beside them."""
    cells = ["bad"] * 25 + ["good"] * 60 + ["alone", "alone too"]
    days = [*(2.0 * np.arange(25)), *[NAN] * 60, 100.0, 102.0]
    assert told_by_group(cells, failing(days)) == (
        "the others that have the same tell the 25 components that failed at any time from those "
        "that did not, area under the ROC curve 1.000"
    )
    mixed = np.random.default_rng(0).permutation(days)
    assert told_by_group(cells, failing(mixed)) == ""


def pairs(on_days):
    """Return who has the same as whom, and when they fail: two at a time, within the hour."""
    days = np.repeat(3.0 * np.arange(on_days), 2) + np.tile([0.1, 0.12], on_days)
    return [number // 2 for number in range(2 * on_days)], days.tolist()


@pytest.mark.parametrize(("on_days", "told"), [(19, False), (20, True)])
def test_whether_another_has_the_same_tells_if_they_failed_on_twenty_days(on_days, told):
    cells, days = pairs(on_days)
    said = told_by_group([*cells, *range(1000, 1100)], failing([*days, *[NAN] * 100]))
    text = (
        f"whether another has the same tells the {2 * on_days} components that failed at any time "
        "from those that did not, area under the ROC curve 1.000"
    )
    assert said == (text if told else "")


@pytest.mark.parametrize(
    ("on_days", "common", "told"), [(19, 97, False), (20, 97, True), (20, 85, False)]
)
def test_who_has_the_most_common_never_failed_if_the_others_did_on_twenty_days(
    on_days, common, told
):
    cells, days = pairs(on_days)
    others = [f"pair {number // 2}" for number in range(100 - common)]
    said = told_by_group(["ok"] * common + others + cells, failing([*[NAN] * 100, *days]))
    text = (
        "who has the most common tells those that never failed from the 40 that did, area under "
        "the ROC curve 0.985"
    )
    assert said == (text if told else "")


def counted(early, late):
    return Fates(np.full(len(early), NAN), np.asarray(early, float), np.asarray(late, float))


@pytest.mark.parametrize(
    ("last", "known", "told"),
    [((1, 1), True, True), ((1, 0), True, False), ((1, 1), False, False)],
    ids=["twenty", "one failed once", "of one it is not known"],
)
def test_a_total_is_told_of_twenty_that_failed_twice_and_more(last, known, told):
    early, late = np.random.default_rng(0).integers(2, 60, (2, 19))
    early, late = np.append(early, last[0]), np.append(late, last[1])
    values = (early + late).astype(float)
    values[-1] = values[-1] if known else NAN
    said = told_by_total(values, counted(early, late))
    text = (
        "of 20 components those that have the same failed the more in one half of the trace the "
        "less in the other, as beside a total, rank correlation -0."
    )
    assert said.startswith(text) if told else said == ""


def test_a_number_that_is_no_total_is_not_told():
    random = np.random.default_rng(0)
    early, late = random.integers(2, 60, (2, 60))
    assert told_by_total(random.random(60), counted(early, late)) == ""
