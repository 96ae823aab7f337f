"""Columns that know how a component ends are named, and honest ones are not."""

import numpy as np
import pytest

from tests.evaluate.disks import DAY_NS, DISKS, bundle_of, columns
from torchloom_core.evaluate.forecasts.foretelling_columns import foretelling_columns


def flagged(bundle, failed, metrics, horizon_d=3):
    return foretelling_columns(bundle, metrics, failed, horizon_ns=horizon_d * DAY_NS)


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


def test_of_few_that_ended_nothing_is_said(tmp_path):
    bundle, _ = bundle_of(tmp_path / "disks.tltrace", 0)
    nobody = np.zeros(DISKS, dtype=bool)
    assert flagged(bundle, nobody, ["length", "fails"], horizon_d=115) == ()


def test_without_a_metric_nothing_is_read(tmp_path):
    bundle, failed = bundle_of(tmp_path / "disks.tltrace", 0)
    assert flagged(bundle, failed, []) == ()
