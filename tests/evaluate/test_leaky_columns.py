"""Columns that reveal the end of a component are named, and honest ones are not."""

from itertools import pairwise

import numpy as np
import pytest

from tests.evaluate.disks import bundle_of, columns
from tests.evaluate.traces import task
from tests.trace.small import NODES, START_NS, at
from tests.trace.small import bundle as small_bundle
from torchloom_core.lab.evaluate.forecasts.component_inputs import AGES, see, turns_of
from torchloom_core.lab.evaluate.forecasts.labels import Incidents
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.lab.trace.bundle import telemetry
from torchloom_core.plugin import Need

NONE = np.zeros(0, dtype=np.int64)
NO_TURNS = turns_of(Incidents(NONE, NONE, NONE, NONE), [], 0)


def flagged(bundle, metrics):
    """Return the flags of metrics for a forecast of three days."""
    of, paced = task(72), {"tick_s": 86_400.0, "every_s": 86_400.0}
    return find_leaky_inputs(bundle, [Need(metric) for metric in metrics], of, **paced)


@pytest.mark.parametrize("seed", range(4))
def test_leaky_columns_are_named_and_honest_ones_are_not(seed, tmp_path):
    future, honest = columns(seed)
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", seed)
    found = flagged(bundle, sorted({**future, **honest}))
    assert [flag.split(": ")[1] for flag in found] == sorted(future)


def test_the_flag_has_the_reason(tmp_path):
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", 0)
    dates, length, fails = flagged(bundle, ["last_date", "length", "fails"])
    assert dates.startswith("leaky_column: last_date: ")
    assert dates.endswith("% of its values are dates later than their row")
    assert "predicts the lifetime of" in length
    assert "rank correlation 1.00" in length
    assert "that failed at any time from the others" in fails


def test_of_two_ages_the_one_that_predicts_the_lifetime_is_flagged(tmp_path):
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, ["age_when_it_came", "age_when_it_goes", "serial"])
    assert flag.startswith("leaky_column: age_when_it_goes: given age_when_it_came, its ")
    assert flag.endswith(" components, rank correlation 1.00")
    assert flagged(bundle, ["age_when_it_goes", "serial"]) == ()


def test_a_column_is_not_flagged_given_one_that_is_flagged_already(tmp_path):
    """Given the date of the end, the date of the start determines the lifetime."""
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, ["came_at", "last_date"])
    assert flag.startswith("leaky_column: last_date: ")


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
    seen = see(bundle, ["power", "temp", "unasked"], ["a", "b"], NO_TURNS)
    assert seen.began_ns.tolist() == [at(10), at(15)]
    assert seen.ended_ns.tolist() == [at(20), at(30)]
    first = [[np.nan, 7.0, np.nan], [1.0, np.nan, np.nan]]
    assert np.array_equal(seen.first, first, equal_nan=True)
    assert seen.counts.tolist() == [[2, 2, 0], [0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("part_rows", [1, 3, 8, 1000])
def test_values_are_averaged_by_age_however_many_rows_are_read_at_a_time(
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
    found = see(bundle, ["m", "n"], ["b", "a"], NO_TURNS)
    rows = [row for row in sorted(samples) if row[4]]
    for place, name in enumerate(["b", "a"]):
        began_s = min(row[0] for row in rows if row[1] == name)
        for look, (after, until) in enumerate(pairwise((0.0, *AGES))):
            for column, metric in enumerate(["m", "n"]):
                values = [
                    row[3]
                    for row in rows
                    if row[1:3] == (name, metric)
                    and 80 * after < row[0] - began_s <= 80 * until
                    and np.isfinite(row[3])
                ]
                mean = np.mean(values) if values else np.nan
                np.testing.assert_allclose(found.means[look, place, column], mean)


def test_a_date_is_one_in_any_unit_and_beyond_its_moment_from_an_hour_on(tmp_path):
    now_s, twenty_years_s = START_NS / 1e9, 20 * 365 * 86_400
    soon_s = now_s + 3600 + 1
    dates = [now_s + 3600, now_s - 100, now_s - twenty_years_s, now_s + twenty_years_s + 60]
    beyond = [soon_s, 1e3 * soon_s, 1e6 * soon_s, 1e9 * soon_s]
    none = [now_s - twenty_years_s - 1, now_s + twenty_years_s + 61, 0.0, 1e300]
    samples = [(0.0, "a", "due", value) for value in (*dates, *beyond, *none)]
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, samples)
    assert see(bundle, ["due"], ["a"], NO_TURNS).counts[:, 0].tolist() == [12, 8, 5]
