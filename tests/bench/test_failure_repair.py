"""What the fleet model and simpy are compared on is the same."""

import importlib

import pytest

from tests.scripts import EXPERIMENTS

pytestmark = pytest.mark.slow


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS / "bench"))
    return importlib.import_module


def test_simpy_books_fail_and_repair_to_the_second(load):
    simpy_fleet = load("simpy_fleet")
    books = simpy_fleet.booked(["a", "b"], [[(10.0, 5.0), (3.0, 50.0)], [(12.0, 1.0)]], 8, 20.0)
    assert books.record == [
        (10.0, "fault", "a"),
        (12.0, "fault", "b"),
        (13.0, "repaired", "b"),
        (15.0, "repaired", "a"),
        (18.0, "fault", "a"),
    ]
    assert books.repair_gpu_s == 8 * (5 + 1 + 2)
    assert books.spare_gpu_s == 8 * 2 * 20 - books.repair_gpu_s


def test_both_sides_see_the_same_failures_and_one_that_differs_is_noticed(load):
    bench = load("failure_repair")._Bench(20)
    assert bench.turn()["fleet_events_per_s"] > 0
    del bench._hits[7]
    with pytest.raises(RuntimeError, match="need the same on both sides"):
        bench.turn()
