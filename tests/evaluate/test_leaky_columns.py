"""Columns that know how a component ends are named, and honest ones are not."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.evaluate.disks import DAY_NS, DISKS, bundle_of, columns
from tests.trace.small import NODES, START_NS, at
from tests.trace.small import bundle as small_bundle
from torchloom_core.evaluate.forecasts.fates import Fates
from torchloom_core.evaluate.forecasts.leaky_columns import (
    AGES,
    LOOKS,
    Lives,
    _Firsts,
    leaky_columns,
    lives_of,
)
from torchloom_core.trace.bundle import telemetry
from torchloom_core.trace.bundle.bundle import Bundle
from torchloom_core.trace.bundle.schema import Component


def flagged(bundle, failed, metrics, horizon_d=3, horizon_ns=None):
    """Return the flags of metrics, of a trace in which who failed did so with the last row."""
    lives = lives_of(bundle, metrics, bundle.measured)
    return leaky_columns(
        lives,
        metrics,
        Fates(np.where(failed, lives.ended_ns, np.nan), 1.0 * failed, 0.0 * failed),
        end_ns=bundle.manifest.end_ns,
        horizon_ns=horizon_ns or horizon_d * DAY_NS,
    )


@pytest.mark.parametrize("seed", range(4))
def test_columns_that_know_the_future_are_named_and_honest_ones_are_not(seed, tmp_path):
    future, honest = columns(seed)
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", seed)
    found = flagged(bundle, failed, sorted({**future, **honest}))
    assert [flag.split(": ")[1] for flag in found] == sorted(future)


def test_the_flag_says_what_the_column_knows(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    dates, length, fails = flagged(bundle, failed, ["last_date", "length", "fails"])
    assert dates.startswith("leaky_column: last_date: ")
    assert dates.endswith("% of its values are dates beyond their moment")
    assert "tells how long" in length
    assert "rank correlation 1.00" in length
    assert "that failed at any time from the others" in fails


def test_of_how_old_one_will_be_the_flag_names_the_age_that_tells_the_rest(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["age_when_it_came", "age_when_it_goes", "serial"])
    assert flag.startswith("leaky_column: age_when_it_goes: beside age_when_it_came its ")
    assert flag.endswith(" components that ended were there, rank correlation 1.00")
    assert flagged(bundle, failed, ["age_when_it_goes", "serial"]) == ()


def test_beside_what_is_flagged_already_nobody_is_blamed(tmp_path):
    """When it came tells how long it is there, once it is known when it goes."""
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["came_at", "last_date"])
    assert flag.startswith("leaky_column: last_date: ")


def test_of_few_that_ended_nothing_is_said(tmp_path):
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", 0)
    nobody = np.zeros(DISKS, dtype=bool)
    assert flagged(bundle, nobody, ["length", "fails"], horizon_d=115) == ()


def test_without_a_metric_nothing_is_read(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    assert flagged(bundle, failed, []) == ()


# --- of a few components, by hand ---


def test_what_is_seen_of_a_component_begins_with_its_first_valid_row_and_ends_with_its_last(
    tmp_path,
):
    samples = [
        (0.0, "a", "temp", 5.0, False),
        (10.0, "a", "temp", 7.0),
        (20.0, "a", "temp", 8.0),
        (15.0, "b", "power", 1.0),
        (30.0, "b", "power", 2.0),
        (40.0, "b", "power", 3.0, False),
        (50.0, "r0", "unasked", 4.0),
    ]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples)
    seen = lives_of(bundle, ["power", "temp", "unasked"], ["a", "b"])
    assert seen.began_ns.tolist() == [at(10), at(15)]
    assert seen.ended_ns.tolist() == [at(20), at(30)]
    first = [[np.nan, 7.0, np.nan], [1.0, np.nan, np.nan]]
    assert np.array_equal(seen.means[0], first, equal_nan=True)
    assert seen.values.tolist() == [2, 2, 0]
    assert (seen.dates.tolist(), seen.beyond.tolist()) == ([0, 0, 0], [0, 0, 0])


def test_the_newest_value_is_looked_at_in_eighths_of_the_trace_after_the_first_row(tmp_path):
    samples = [(5.0, "a", "m", 1.0), (15.0, "a", "m", 2.0), (16.0, "a", "m", np.inf)]
    samples += [(35.001, "a", "m", 3.0), (30.0, "b", "m", 9.0)]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples, seconds=80.0)
    seen = lives_of(bundle, ["m"], ["a", "b"])
    assert seen.ages_ns.tolist() == [10e9, 20e9, 30e9, 40e9, 50e9, 60e9]
    assert seen.later[:, 0, 0].tolist() == [2.0, 2.0, 2.0, 3.0, 3.0, 3.0]
    assert seen.later[:, 1, 0].tolist() == [9.0] * 6


@pytest.mark.parametrize("part_rows", [1, 3, 8, 1000])
def test_the_newest_values_are_found_however_many_rows_are_read_at_a_time(
    tmp_path, monkeypatch, part_rows
):
    rng = np.random.default_rng(3)
    samples = [
        (float(second), str(rng.choice(["a", "b"])), str(rng.choice(["m", "n"])), float(value), ok)
        for second, value, ok in zip(
            np.sort(rng.integers(0, 80, 120)),
            rng.choice([1.0, 2.0, 3.0, np.nan, np.inf], 120),
            rng.random(120) < 0.9,
            strict=True,
        )
    ]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples, seconds=80.0)
    monkeypatch.setattr(telemetry, "PART_ROWS", part_rows)
    seen = lives_of(bundle, ["m", "n"], ["b", "a"])
    rows = [row for row in sorted(samples) if row[4]]
    for place, name in enumerate(["b", "a"]):
        began_s = min(row[0] for row in rows if row[1] == name)
        for look, eighths in enumerate(AGES):
            for column, metric in enumerate(["m", "n"]):
                *_, newest = [np.nan] + [
                    row[3]
                    for row in rows
                    if row[1:3] == (name, metric)
                    and row[0] <= began_s + 10 * eighths
                    and np.isfinite(row[3])
                ]
                assert seen.later[look, place, column] == newest


def test_the_first_values_are_looked_at_together_however_they_are_read(tmp_path):
    values = np.arange(40.0)
    samples = [(float(n), "a", "m", value) for n, value in enumerate(values)]
    samples += [(float(n), "b", "m", np.inf if n == 1 else 10.0 * n) for n in range(3)]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples)
    seen = lives_of(bundle, ["m"], ["b", "a"])
    assert seen.means[:, 1, 0].tolist() == [values[:look].mean() for look in LOOKS]
    assert seen.at_ns[:, 1, 0].tolist() == [at(look - 1) for look in LOOKS]
    assert seen.means[:2, 0, 0].tolist() == [0.0, 10.0]
    assert np.isnan(seen.means[2:, 0, 0]).all()
    in_parts = _Firsts(1, 1)
    for n in range(40):
        in_parts.add(np.zeros(1, np.int64), np.array([at(n)]), values[n : n + 1])
    assert np.array_equal(in_parts.means[:, 0], seen.means[:, 1])
    assert np.array_equal(in_parts.at_ns[:, 0], seen.at_ns[:, 1])


def test_the_mean_of_what_is_too_great_for_a_sum_is_greater_than_all():
    firsts = _Firsts(1, 1)
    firsts.add(np.zeros(2, np.int64), np.array([at(0), at(1)]), np.full(2, 1.7e308))
    assert firsts.means[:2, 0, 0].tolist() == [1.7e308, np.inf]


def test_a_date_is_one_in_any_unit_and_beyond_its_moment_from_an_hour_on(tmp_path):
    now_s, twenty_years_s = START_NS / 1e9, 20 * 365 * 86_400
    soon_s = now_s + 3600 + 1
    dates = [now_s + 3600, now_s - 100, now_s - twenty_years_s, now_s + twenty_years_s + 60]
    beyond = [soon_s, 1e3 * soon_s, 1e6 * soon_s, 1e9 * soon_s]
    none = [now_s - twenty_years_s - 1, now_s + twenty_years_s + 61, 0.0, 1e300]
    samples = [(0.0, "a", "due", value) for value in (*dates, *beyond, *none)]
    seen = lives_of(small_bundle(tmp_path / "t.tltrace", NODES, samples), ["due"], ["a"])
    assert (seen.values[0], seen.dates[0], seen.beyond[0]) == (12, 8, 5)


def test_the_first_moment_that_is_a_date_is_rounded_as_dates_are(tmp_path):
    first_ns = START_NS + 1 - 20 * 365 * DAY_NS
    assert float(first_ns) < first_ns
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, [(1.0, "a", "m", float(first_ns))])
    bundle = Bundle(bundle.path, replace(bundle.manifest, start_ns=START_NS + 1))
    assert lives_of(bundle, ["m"], ["a"]).dates.tolist() == [1.0]


@pytest.mark.parametrize(
    ("beyond", "others", "named"), [(1, 0, True), (0, 0, False), (1, 1, False)]
)
def test_one_date_of_a_hundred_beyond_its_moment_is_enough_if_next_to_all_are_dates(
    tmp_path, beyond, others, named
):
    now_s = START_NS / 1e9
    values = [now_s + 9999] * beyond + [5.0] * others + [now_s] * (100 - beyond - others)
    bundle = small_bundle(
        tmp_path / "t.tltrace", NODES, [(0.0, "a", "due", value) for value in values]
    )
    found = flagged(bundle, np.zeros(1, dtype=bool), ["due"], horizon_ns=10**9)
    text = "leaky_column: due: 1% of its values are dates beyond their moment"
    assert found == ((text,) if named else ())


def fleet(path, values, ended_s):
    ids = [f"d{number:02}" for number in range(len(values))]
    samples = [
        (at_s, name, "m", float(value))
        for name, value, end_s in zip(ids, values, ended_s, strict=True)
        for at_s in (0.0, end_s)
    ]
    disks = [Component(id=name, kind="disk") for name in ids]
    return small_bundle(path / "t.tltrace", disks, samples, seconds=1000.0)


@pytest.mark.parametrize(("count", "last_s", "told"), [(20, 899, 20), (19, 899, 0), (20, 900, 0)])
@pytest.mark.parametrize("sign", [1, -1])
def test_how_long_they_were_there_is_asked_of_twenty_that_ended_a_horizon_before(
    tmp_path, count, last_s, told, sign
):
    ended_s = [*(10.0 * (1 + n) for n in range(count - 1)), float(last_s)]
    bundle = fleet(tmp_path, [sign * n for n in range(count)], ended_s)
    found = flagged(bundle, np.zeros(count, bool), ["m"], horizon_ns=100 * 10**9)
    text = (
        f"leaky_column: m: its first value tells how long {told} components that ended were "
        "there, rank correlation 1.00"
    )
    assert found == ((text,) if told else ())


@pytest.mark.parametrize(("failed", "others"), [(20, 20), (19, 21), (21, 19)])
@pytest.mark.parametrize("sign", [1, -1])
def test_who_failed_is_told_apart_where_twenty_did_and_twenty_did_not(
    tmp_path, failed, others, sign
):
    which = np.arange(failed + others) < failed
    values = sign * (np.arange(failed + others) + 100 * which)
    bundle = fleet(tmp_path, values, [999.0] * len(which))
    found = flagged(bundle, which, ["m"], horizon_ns=100 * 10**9)
    text = (
        "leaky_column: m: its first value tells the 20 components that failed at any time "
        "from the others, area under the ROC curve 1.000"
    )
    assert found == ((text,) if failed == others else ())


# --- of what is seen of a fleet ---


def whys(
    first, *, two=np.nan, month=np.nan, began_d=0.0, ended_d=119.0, first_d=None, two_d=1.0,
    failed_d=np.nan, often=(0.0, 0.0),
):  # fmt: skip
    """Return what columns are flagged for, in a trace of 120 days and for a horizon of seven.

    Each has a ``first`` value, that came on day ``first_d``, the mean of the first ``two``, of
    which the last came on ``two_d``, and what it is a ``month`` after the first row.
    """
    columns = np.atleast_2d(first).T
    count, metrics = columns.shape[0], "abc"[: columns.shape[1]]

    def each(value):
        return np.broadcast_to(np.asarray(value, dtype=float), count)

    began_ns, ended_ns, failed_ns = (DAY_NS * each(of) for of in (began_d, ended_d, failed_d))
    means, at_ns = np.full((2, len(LOOKS), *columns.shape), np.nan)
    later = np.full((len(AGES), *columns.shape), np.nan)
    came_d = each(began_d if first_d is None else first_d)[:, None]
    means[0], at_ns[0] = columns, np.where(np.isnan(columns), np.nan, DAY_NS * came_d)
    means[1], at_ns[1] = each(two)[:, None], DAY_NS * each(two_d)[:, None]
    later[1] = each(month)[:, None]
    none = np.zeros(len(metrics))
    ages_ns = np.array(AGES) * 15.0 * DAY_NS
    return leaky_columns(
        Lives(began_ns, ended_ns, means, at_ns, later, ages_ns, none, none, none + count),
        metrics,
        Fates(failed_ns, *map(each, often)),
        end_ns=120 * DAY_NS,
        horizon_ns=7 * DAY_NS,
    )


FEW = np.arange(45) < 20
FAILED_D = np.where(FEW, 50.0, np.nan)
TELLS = np.where(np.arange(45) == 0, -1.0, 1.0 * FEW)
"""One of twenty that failed is below all others."""
APART_TEXT = (
    " the 20 components that failed at any time from the others, area under the ROC curve 0.950"
)


def test_whose_failure_is_near_at_its_first_value_is_asked_about():
    found = whys(TELLS, failed_d=FAILED_D, began_d=np.where(FEW, 45.0, 0.0))
    assert found == ("leaky_column: a: its first value tells" + APART_TEXT,)


@pytest.mark.parametrize(("ended_d", "bar_d"), [(119.0, 43.0), (45.0, 38.0)])
def test_whose_failure_or_end_is_near_at_its_second_value_is_not_asked_about(ended_d, bar_d):
    told = {"two": TELLS, "failed_d": FAILED_D, "ended_d": np.where(FEW, ended_d, 119.0)}
    flag = "leaky_column: a: its first 2 values tell" + APART_TEXT
    assert whys(np.zeros(45), two_d=bar_d - 0.1, **told) == (flag,)
    assert whys(np.zeros(45), two_d=bar_d, **told) == ()


def test_how_long_one_is_there_is_asked_beside_when_it_came_and_of_two_values_when_both_had():
    at_d = 1.0 + np.random.default_rng(0).permutation(20)
    flag = (
        "leaky_column: a: its first value tells how long 20 components that ended were there,"
        " rank correlation 1.00"
    )
    assert whys(at_d, first_d=at_d, ended_d=at_d + 10) == (flag,)
    assert whys(np.zeros(20), two=at_d, two_d=at_d, ended_d=at_d + 10) == ()


def test_of_two_values_is_asked_who_ends_more_than_a_horizon_after_the_second():
    ended_d = np.r_[50.0, 8.0, 20.0 + np.arange(20)]
    two = np.where(np.arange(22) == 0, np.nan, ended_d)
    flag = (
        "leaky_column: a: its first 2 values tell how long 20 components that ended were "
        "there, rank correlation 1.00"
    )
    assert whys(np.zeros(22), two=two, two_d=1.0, ended_d=ended_d) == (flag,)


def test_a_month_later_is_asked_who_ends_more_than_a_horizon_after_that():
    ended_d = np.r_[50.0, 37.0, 25.0, 40.0 + np.arange(20)]
    month = np.where(np.arange(23) == 0, np.nan, ended_d)
    flag = (
        "leaky_column: a: its values 2/8 of the trace after its first tell how long 20 "
        "components that ended were there, rank correlation 1.00"
    )
    assert whys(np.zeros(23), month=month, ended_d=ended_d) == (flag,)


def test_a_month_later_is_asked_who_fails_more_than_a_horizon_after_that():
    failed_d = np.r_[FAILED_D, 37.0, 25.0, np.nan]
    month = np.r_[TELLS, 1.0, 1.0, np.nan]
    flag = (
        "leaky_column: a: its values 2/8 of the trace after its first tell the 20 components "
        "that failed after that from the others, area under the ROC curve 0.950"
    )
    assert whys(np.zeros(48), month=month, failed_d=failed_d) == (flag,)


def test_whether_there_is_a_value_is_asked_of_who_was_there_a_horizon_before_it_failed():
    """Two of twenty have it but then, and two more came then."""
    first = np.r_[np.where(FEW, 0.0, np.nan), 0.0, 0.0]
    came_d = np.r_[np.where(np.arange(45) < 2, 43.0, 1.0), 43.0, 45.0]
    began_d = np.r_[np.zeros(45), 43.0, 45.0]
    flag = "leaky_column: a: whether there is one tells" + APART_TEXT
    told = {"failed_d": np.r_[FAILED_D, 50.0, 50.0], "began_d": began_d, "first_d": came_d}
    assert whys(first, **told) == (flag,)


def test_a_total_and_a_batch_are_named_of_those_of_which_there_is_a_value():
    total = np.r_[np.nan, np.arange(21.0)]
    swing = np.where(np.arange(22) % 2, 1.0, -1.0) * (1.0 + np.arange(22) / 100)
    halves = np.nan_to_num(total) + np.array([swing, -swing])
    (flag,) = whys(total, failed_d=50.0, often=halves)
    assert flag.startswith("leaky_column: a: of 21 components those that have the same faile")
    batch = np.r_[np.nan, np.repeat([1.0, 4.0, 2.0, 3.0], 10)]
    failed_d = np.where(np.arange(41) < 21, 10.0 + 2 * np.arange(41), np.nan)
    (flag,) = whys(batch, failed_d=failed_d)
    assert flag.startswith("leaky_column: a: the others that have the same tell the 20 compo")


def test_beside_a_column_that_tells_it_by_itself_an_honest_one_is_not_blamed():
    length = np.arange(40.0)
    noise = 20 * np.random.default_rng(0).random(40)
    assert [flag[:21] for flag in whys([noise, length - noise], ended_d=20.0 + length)] == [
        "leaky_column: b"
    ]


def test_how_long_one_is_there_is_asked_of_a_column_beside_another():
    length, age = np.arange(45.0), 300 * np.random.default_rng(0).random(45)
    text = "leaky_column: b: beside a its first value tells how long 45 components that ended"
    (flag,) = whys([age, age + length], ended_d=20.0 + length)
    assert flag.startswith(text)


def test_who_fails_is_asked_of_a_column_beside_another():
    age = np.random.default_rng(0).random(45)
    text = "leaky_column: b: beside a its first value tells the 20 components that failed at "
    (flag,) = whys([age, age + 0.1 * FEW], failed_d=FAILED_D)
    assert flag.startswith(text)
