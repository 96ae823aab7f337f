"""Leaky inputs are flagged if they are read and were not known before."""

import numpy as np
import pytest

from tests.evaluate.hindsight import TASK, disks, needs_of
from torchloom_core.lab.evaluate.forecasts.leaks import find_leaky_inputs
from torchloom_core.plugin import NeedFaults, NeedPast


def named(bundle, needs, *known_before):
    """Return what is flagged, by name, once each."""
    paced = {"tick_s": 86_400.0, "every_s": 86_400.0, "known_before": known_before}
    names = [flag.split(": ")[1] for flag in find_leaky_inputs(bundle, needs, TASK, **paced)]
    assert len(names) == len({*names})
    return {*names}


@pytest.mark.slow
def test_only_inputs_that_are_read_and_not_known_before_are_flagged(tmp_path):
    fleet = disks(0, count=200)
    fleet.metrics |= {"fails": 1.0 * fleet.failed[fleet.of]}
    fleet.rack = np.where(fleet.failed, 99, np.arange(200) % 4)
    fleet.notes += [(max(0.0, day - 3.0), row, "return opened") for day, row in fleet.failures]
    bundle = fleet.write(tmp_path / "t.tltrace")

    needs = needs_of(bundle)
    without = [need for need in needs if not isinstance(need, NeedFaults)]
    all_of_it = {"fails", "its rack", "return opened"}
    assert named(bundle, needs) == all_of_it
    assert named(bundle, without) == {"fails"}
    for skipped in all_of_it:
        assert named(bundle, needs, skipped) == all_of_it - {skipped}
    assert named(bundle, []) == set()


def test_time_in_service_is_flagged_for_predictors_that_read_the_past(tmp_path):
    fleet = disks(0, count=400)
    days = fleet.random.integers(30, 31, len(fleet))
    fleet.came = np.where(fleet.failed, np.fmax(fleet.ended - days, 0), 0)
    fleet.__post_init__()
    fleet.metrics = {"temperature": fleet.random.normal(40, 3, len(fleet.at))}
    bundle = fleet.write(tmp_path / "t.tltrace")
    needs = needs_of(bundle)
    assert named(bundle, needs) == {"time in service"}
    assert named(bundle, needs, "time in service") == set()
    assert named(bundle, [need for need in needs if not isinstance(need, NeedPast)]) == set()
