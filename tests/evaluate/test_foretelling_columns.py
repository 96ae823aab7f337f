"""Columns that know how a component ends are named, and honest ones are not."""

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, DISKS, bundle_of, columns
from tests.trace.small import NODES, START_NS, at
from tests.trace.small import bundle as small_bundle
from torchloom_core.evaluate.forecasts.fates import Fates
from torchloom_core.evaluate.forecasts.foretelling_columns import (
    LOOKS,
    _Firsts,
    foretelling_columns,
    lives_of,
)
from torchloom_core.trace.bundle.schema import Component


def flagged(bundle, failed, metrics, horizon_d=3, horizon_ns=None):
    """Return the flags of metrics, of a trace in which who failed did so with the last row."""
    lives = lives_of(bundle, metrics, bundle.measured)
    return foretelling_columns(
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
    assert dates.startswith("foretelling_column: last_date: ")
    assert dates.endswith("% of its values are dates beyond their moment")
    assert "tells how long" in length
    assert "rank correlation 1.00" in length
    assert "that failed at any time from the others" in fails


def test_of_how_old_one_will_be_the_flag_names_the_age_that_tells_the_rest(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["age_when_it_came", "age_when_it_goes", "serial"])
    assert flag.startswith("foretelling_column: age_when_it_goes: beside age_when_it_came its ")
    assert flag.endswith(" components that ended were there, rank correlation 1.00")
    assert flagged(bundle, failed, ["age_when_it_goes", "serial"]) == ()


def test_beside_what_is_flagged_already_nobody_is_blamed(tmp_path):
    """When it came tells how long it is there, once it is known when it goes."""
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["came_at", "last_date"])
    assert flag.startswith("foretelling_column: last_date: ")


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
    ]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples)
    seen = lives_of(bundle, ["power", "temp"], ["a", "b"])
    assert seen.began_ns.tolist() == [at(10), at(15)]
    assert seen.ended_ns.tolist() == [at(20), at(30)]
    assert np.array_equal(seen.means[0], [[np.nan, 7.0], [1.0, np.nan]], equal_nan=True)
    assert seen.values.tolist() == [2, 2]
    assert (seen.dates.tolist(), seen.beyond.tolist()) == ([0, 0], [0, 0])


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


def test_a_date_is_one_in_any_unit_and_beyond_its_moment_from_an_hour_on(tmp_path):
    now_s, twenty_years_s = START_NS / 1e9, 20 * 365 * 86_400
    soon_s = now_s + 3600 + 1
    dates = [now_s + 3600, now_s - 100, now_s - twenty_years_s, now_s + twenty_years_s + 60]
    beyond = [soon_s, 1e3 * soon_s, 1e6 * soon_s, 1e9 * soon_s]
    none = [now_s - twenty_years_s - 1, now_s + twenty_years_s + 61, 0.0, 1e300]
    samples = [(0.0, "a", "due", value) for value in (*dates, *beyond, *none)]
    seen = lives_of(small_bundle(tmp_path / "t.tltrace", NODES, samples), ["due"], ["a"])
    assert (seen.values[0], seen.dates[0], seen.beyond[0]) == (12, 8, 5)


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
    text = "foretelling_column: due: 1% of its values are dates beyond their moment"
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
        f"foretelling_column: m: its first value tells how long {told} components that ended were "
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
        "foretelling_column: m: its first value tells the 20 components that failed at any time "
        "from the others, area under the ROC curve 1.000"
    )
    assert found == ((text,) if failed == others else ())
