"""Columns made in hindsight are flagged by name, and honest ones are not.

Of each sort twenty fleets are drawn.
"""

import numpy as np
import pytest

from tests.evaluate.hindsight import SEEDS, TASK, disks, needs_of, nodes
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs

pytestmark = pytest.mark.slow


def flagged(fleet, path, **more):
    """Return what is flagged, by name."""
    bundle = fleet.write(path / "t.tltrace")
    paced = {"tick_s": 86_400.0, "every_s": 86_400.0}
    flags = find_leaky_inputs(bundle, needs_of(bundle), TASK, **paced, **more)
    assert all(flag.startswith("leaky_column: ") for flag in flags)
    assert all(flag.count(": ") == 2 for flag in flags)
    return sorted(flag.split(": ")[1] for flag in flags)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_an_honest_fleet_is_flagged(seed, tmp_path):
    assert flagged(disks(seed), tmp_path) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_an_honest_fleet_that_comes_back_is_flagged(seed, tmp_path):
    assert flagged(nodes(seed), tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_columns_that_were_made_afterwards_are_flagged_and_the_others_are_not(seed, tmp_path):
    fleet = disks(seed, count=200)
    random, at, of, failed, ended = fleet.random, fleet.at, fleet.of, fleet.failed, fleet.ended
    count, since = len(fleet), at - fleet.came[of]
    share = since / np.fmax(ended - fleet.came - 1, 1)[of]
    ticket = failed | (random.random(count) < 0.05)
    fleet.metrics |= {
        "to_be_returned": np.where(failed[of], 1.0, np.nan),
        "ticket": np.where(ticket[of], random.normal(0, 1, count)[of], np.nan),
        "share_of_life": share,
        "share_of_life_about": np.where(since == 0, 0.0, share + random.normal(0, 0.04, len(at))),
        "last_day": np.where(since == 0, 0.0, 1.0 * ended[of]),
    }
    assert flagged(fleet, tmp_path) == sorted([*fleet.metrics][-5:])


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_groups_that_were_made_afterwards_are_flagged_and_the_others_are_not(seed, tmp_path):
    fleet = disks(seed, count=200)
    failed, ended, count = fleet.failed, fleet.ended, len(fleet)
    batch = np.empty(count, dtype=object)
    for fails, some in (("yes", np.flatnonzero(failed)), ("no", np.flatnonzero(~failed))):
        for place, row in enumerate(fleet.random.permutation(some)):
            batch[row] = f"{fails}{place // 10}"
    fleet.attributes |= {
        "batch": batch.tolist(),
        "number": np.unique(batch.astype(str), return_inverse=True)[1].astype(float).tolist(),
        "closed_in": [f"w{ended[row] // 7}" if failed[row] else "no" for row in range(count)],
        "closed_on": [f"d{ended[row]}" if failed[row] else "no" for row in range(count)],
    }
    fleet.rack = np.where(failed, 99, np.arange(count) % 4)
    days = {int(day) for day, _ in fleet.failures}
    due = ["batch", "closed_in", "its rack", "number", *["closed_on"] * (len(days) >= 20)]
    assert flagged(fleet, tmp_path) == sorted(due)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_noted_afterwards_of_each_failure_is_flagged(seed, tmp_path):
    fleet = disks(seed)
    days = fleet.random.uniform(2, 6, len(fleet.failures))
    fleet.notes += [
        (max(0.0, day - before), row, "return opened")
        for (day, row), before in zip(fleet.failures, days, strict=True)
    ]
    assert flagged(fleet, tmp_path) == ["return opened"]
    assert flagged(fleet, tmp_path / "known", known_before=["return opened"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:5])
def test_a_leak_in_later_values_only_is_flagged(seed, tmp_path):
    fleet = disks(seed, count=400)
    row, failed, left = fleet.of, fleet.failed[fleet.of], fleet.ended[fleet.of] - fleet.at
    any_left = fleet.random.integers(1, 120, len(row))
    is_old = fleet.at - fleet.came[row] >= 33
    fleet.metrics |= {
        "fails": np.where(is_old, 1.0 * failed, 0.0),
        "days_left": np.where(is_old, np.where(failed, left, any_left), 0),
    }
    assert flagged(fleet, tmp_path) == ["days_left", "fails"]


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_shared_values_among_unique_ones_are_flagged(seed, tmp_path):
    fleet = disks(seed, count=200)
    case = np.arange(len(fleet)) + 1000
    fails = fleet.random.permutation(np.flatnonzero(fleet.failed))
    case[fails] = np.arange(len(fails)) // 10
    fleet.attributes |= {"case": [f"c{number}" for number in case]}
    fleet.rack = case
    days = {int(day) for day, _ in fleet.failures}
    assert flagged(fleet, tmp_path) == ["case", "its rack"] * (len(days) >= 20)


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_a_kind_of_event_that_is_always_more_frequent_before_failures_is_flagged(seed, tmp_path):
    fleet = disks(seed, count=200)
    for row, fails in enumerate(fleet.failed):
        days = fleet.random.uniform(0, fleet.ended[row], 12 if fails else 3)
        fleet.notes += [(day, row, "audit") for day in days.tolist()]
    assert flagged(fleet, tmp_path) == ["audit"]


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_of_the_whole_trace_are_flagged_where_all_fail(seed, tmp_path):
    fleet = nodes(seed)
    total = np.bincount([row for _, row in fleet.failures], minlength=len(fleet)).astype(float)
    fleet.attributes |= {"total": total.tolist(), "log_total": np.log(total).tolist()}
    assert flagged(fleet, tmp_path) == ["log_total", "total"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:5])
def test_a_column_that_predicts_the_next_failure_is_flagged(seed, tmp_path):
    fleet = nodes(seed)
    at, of = fleet.at, fleet.of
    last, coming, faults = np.array([
        (max([0.0, *(one for one in days if one <= day)]),
         min([1000.0, *(one for one in days if one > day)]),
         sum(one <= day for one in days))
        for day, row in zip(at, of, strict=True)
        for days in [[one for one, failed in fleet.failures if failed == row]]
    ]).T  # fmt: skip
    fleet.metrics |= {
        "day": 1.0 * at,
        "age": at + 100.0 * of,
        "faults": faults,
        "up_since": at - last,
        "wear": faults**2 + fleet.random.normal(0, 1, len(at)),
        "rate": np.array(fleet.attributes["rate"])[of],
    }
    assert flagged(fleet, tmp_path) == []
    fleet.metrics["left"] = (coming - at) * fleet.random.lognormal(0, 0.1, len(at))
    assert flagged(fleet, tmp_path / "left") == ["left"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("days", [(30, 31), (15, 60)])
def test_an_extract_of_the_last_weeks_of_what_failed_is_flagged(seed, days, tmp_path):
    fleet = disks(seed, count=400)
    weeks = fleet.random.integers(*days, len(fleet))
    fleet.came = np.where(fleet.failed, np.fmax(fleet.ended - weeks, 0), 0)
    fleet.__post_init__()
    fleet.metrics = {"temperature": fleet.random.normal(40, 3, len(fleet.at))}
    assert flagged(fleet, tmp_path) == ["time in service"]
