"""Columns that reveal the end of a component are named, and honest ones are not."""

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, DISKS, bundle_of, columns
from tests.trace.small import NODES, START_NS, at
from tests.trace.small import bundle as small_bundle
from torchloom_core.lab.evaluate.forecasts.failure_history import FailureHistory
from torchloom_core.lab.evaluate.forecasts.leaky_columns import (
    AGES,
    leaky_columns,
    summarize_telemetry,
)
from torchloom_core.lab.trace.bundle import telemetry
from torchloom_core.lab.trace.bundle.schema import Component


def flagged(bundle, failed, metrics, horizon_d=3, horizon_ns=None):
    """Return the flags of metrics, on a trace in which components fail at their last row."""
    summary = summarize_telemetry(bundle, metrics, bundle.measured)
    return leaky_columns(
        summary,
        metrics,
        FailureHistory(np.where(failed, summary.ended_ns, np.nan), 1.0 * failed, 0.0 * failed),
        end_ns=bundle.manifest.end_ns,
        horizon_ns=horizon_ns or horizon_d * DAY_NS,
    )


@pytest.mark.parametrize("seed", range(4))
def test_leaky_columns_are_named_and_honest_ones_are_not(seed, tmp_path):
    future, honest = columns(seed)
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", seed)
    found = flagged(bundle, failed, sorted({**future, **honest}))
    assert [flag.split(": ")[1] for flag in found] == sorted(future)


def test_the_flag_has_the_reason(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    dates, length, fails = flagged(bundle, failed, ["last_date", "length", "fails"])
    assert dates.startswith("leaky_column: last_date: ")
    assert dates.endswith("% of its values are dates later than their row")
    assert "predicts the lifetime of" in length
    assert "rank correlation 1.00" in length
    assert "that failed at any time from the others" in fails


def test_of_two_ages_the_one_that_predicts_the_lifetime_is_flagged(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["age_when_it_came", "age_when_it_goes", "serial"])
    assert flag.startswith("leaky_column: age_when_it_goes: given age_when_it_came, its ")
    assert flag.endswith(" components, rank correlation 1.00")
    assert flagged(bundle, failed, ["age_when_it_goes", "serial"]) == ()


def test_a_column_is_not_flagged_given_one_that_is_flagged_already(tmp_path):
    """Given the date of the end, the date of the start determines the lifetime."""
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    (flag,) = flagged(bundle, failed, ["came_at", "last_date"])
    assert flag.startswith("leaky_column: last_date: ")


def test_few_ended_components_give_no_flag(tmp_path):
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
    seen = summarize_telemetry(bundle, ["power", "temp", "unasked"], ["a", "b"])
    assert seen.began_ns.tolist() == [at(10), at(15)]
    assert seen.ended_ns.tolist() == [at(20), at(30)]
    first = [[np.nan, 7.0, np.nan], [1.0, np.nan, np.nan]]
    assert np.array_equal(seen.means[0], first, equal_nan=True)
    assert seen.values.tolist() == [2, 2, 0]
    assert (seen.dates.tolist(), seen.beyond.tolist()) == ([0, 0, 0], [0, 0, 0])


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
    seen = summarize_telemetry(bundle, ["m", "n"], ["b", "a"])
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


def test_a_date_is_one_in_any_unit_and_beyond_its_moment_from_an_hour_on(tmp_path):
    now_s, twenty_years_s = START_NS / 1e9, 20 * 365 * 86_400
    soon_s = now_s + 3600 + 1
    dates = [now_s + 3600, now_s - 100, now_s - twenty_years_s, now_s + twenty_years_s + 60]
    beyond = [soon_s, 1e3 * soon_s, 1e6 * soon_s, 1e9 * soon_s]
    none = [now_s - twenty_years_s - 1, now_s + twenty_years_s + 61, 0.0, 1e300]
    samples = [(0.0, "a", "due", value) for value in (*dates, *beyond, *none)]
    seen = summarize_telemetry(small_bundle(tmp_path / "t.tltrace", NODES, samples), ["due"], ["a"])
    assert (seen.values[0], seen.dates[0], seen.beyond[0]) == (12, 8, 5)


def fleet(path, values, ended_s):
    ids = [f"d{number:02}" for number in range(len(values))]
    samples = [
        (at_s, name, "m", float(value))
        for name, value, end_s in zip(ids, values, ended_s, strict=True)
        for at_s in (0.0, end_s)
    ]
    disks = [Component(id=name, kind="disk") for name in ids]
    return small_bundle(path / "t.tltrace", disks, samples, seconds=1000.0)


# --- of what is seen of a fleet ---
