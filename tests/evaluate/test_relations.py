"""Relations between columns and failures are distinguished from chance."""

import numpy as np
import pytest

from tests.evaluate.histories import DAY_NS, history
from tests.evaluate.traces import task
from tests.trace.small import NODES, START_NS
from tests.trace.small import bundle as small_bundle
from torchloom_core.lab.evaluate.forecasts.component_inputs import (
    Column,
    history_of,
    share_of_others,
)
from torchloom_core.lab.evaluate.forecasts.labels import Incidents
from torchloom_core.lab.evaluate.forecasts.leaks import leaky_columns
from torchloom_core.lab.learning.ranking import partial_correlation, roc_auc
from torchloom_core.lab.trace.feed.watched import watch

NAN = np.nan


def leaky(of, **values):
    """Return the reasons by column, of constant values."""
    always = np.full(len(of.failed), -np.inf)
    columns = [
        Column(name, [("it", -np.inf, np.array(one, dtype=float))], range(len(of.failed)), always)
        for name, one in values.items()
    ]
    return dict(leaky_columns(columns, of, task(24)))


def test_the_history_has_first_failures_and_counts_per_half(tmp_path):
    bundle = small_bundle(tmp_path / "t.tltrace", NODES, seconds=20.0)
    start_ns = START_NS + 10**9 * np.array([5, 10, 10, 19])
    found = Incidents(np.array([1, 0, 1, 1]), start_ns, start_ns + 1, np.ones(4, dtype=np.int64))
    rows = [(0,), (1,), (), (1, 0)]
    of = history_of(bundle, task(24), found, rows, np.zeros(4), np.full(4, NAN))
    assert len(watch(bundle).ids) == 2
    assert ((of.failed_ns - START_NS) / 1e9).tolist()[:2] == [10.0, 5.0]
    assert of.failed.tolist() == [True, True, False, True]
    assert (of.early.tolist(), of.late.tolist()) == ([0, 1, 0, 1], [1, 2, 0, 3])


def test_failures_of_others_in_a_group_are_a_leak():
    """Failures are more than a day apart; two failed components share their value with no other."""
    cells = ["bad"] * 25 + ["good"] * 60 + ["alone", "alone too"]
    days = np.array([*(2.0 * np.arange(25)), *[NAN] * 60, 100.0, 102.0])
    column = Column("of", (), cells, np.full(87, -np.inf))
    assert leaky_columns([column], history(failed_d=days), task(24)) == [
        ("of", "the share of failures of others with its value separates the 25 components that "
         "failed at any time from the others, ROC AUC 1.000")
    ]  # fmt: skip
    mixed = np.random.default_rng(0).permutation(days)
    assert leaky_columns([column], history(failed_d=mixed), task(24)) == []
    assert leaky_columns([Column("of", (), [], np.zeros(0))], history(failed_d=[]), task(24)) == []


def test_the_share_is_of_the_others_and_not_of_those_that_failed_within_a_day():
    group = np.array([0, 0, 0, 0, 1, 1, 2])
    days = np.array([1.0, 1.9, 5.0, NAN, NAN, 3.0, 4.0])
    share = share_of_others(group, days * DAY_NS)
    # The first two may have failed together: of the two others of each, one failed.
    assert share[:2].tolist() == [1 / 2, 1 / 2]
    assert share[2:6].tolist() == [2 / 3, 1.0, 1.0, 0.0]
    assert np.isnan(share[6])


def test_a_simultaneous_outage_of_a_rack_is_no_evidence():
    share = share_of_others(np.array([0, 0, 0, 1, 1]), np.array([5.0, 6.0, 7.0, NAN, NAN]))
    assert np.isnan(share[:3]).all()
    assert share[3:].tolist() == [0.0, 0.0]


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
            found[name] += bool(leaky(history(early=early, late=late), **{name: value}))
    assert min(found["total"], found["log"]) >= 90
    assert [found[name] for name in ("rate", "earlier", "noise", "first half")] == [0, 0, 0, 0]


@pytest.mark.parametrize("count", [20, 40, 100])
def test_chance_passes_no_bar(count):
    random = np.random.default_rng(count)
    for _ in range(300):
        first, began, length, early, late = random.random((5, count))
        ended = 9.0 * (began + length)
        failed = np.where(np.arange(count) % 2 == 0, ended, NAN)
        of = history(began_d=9 * began, ended_d=ended, failed_d=failed, early=early, late=late)
        assert leaky(of, first=first) == {}


def test_ends_and_lifetimes_are_correlated_given_the_start():
    random = np.random.default_rng(0)
    began, length = 100 * random.random(60), np.exp(3 * random.normal(size=60))
    of, after = history(began_d=began, ended_d=began + length), began + 0.1 * length
    assert [*leaky(of, ended=began + length)] == ["ended"]
    assert [*leaky(of, length=length)] == ["length"]
    assert leaky(history(began_d=began, ended_d=after), began=began, ones=np.ones(60)) == {}


@pytest.mark.filterwarnings("error")
def test_the_largest_floats_do_not_overflow():
    ended = np.arange(1.0, 41.0) * 1e4
    huge = np.where(np.arange(40) % 2, 1e308, -1e308)
    age = np.random.default_rng(0).random(40) * 1e7
    assert [*leaky(history(ended_d=ended), huge=huge, age=age, goes=age + ended)] == ["goes"]


def test_of_two_columns_that_leak_together_the_better_one_is_flagged_or_both_if_equal():
    age = np.r_[NAN, np.tile(np.arange(32.0), 2), NAN]
    failed = np.arange(66) < 33
    of = history(failed_d=np.where(failed, 5.0, NAN))
    less, more = age - 0.1 * failed, age + 0.1 * failed
    assert [*leaky(of, less=less, more=more)] == ["less", "more"]
    assert [*leaky(of, less=less, more=more + 5.0 * failed)] == ["more"]


def test_roc_auc_has_a_direction():
    low, high = np.zeros(20), np.ones(20)
    assert (roc_auc(high, low), roc_auc(low, high)) == (1.0, 0.0)
    assert roc_auc(np.r_[low, high], np.r_[low, high]) == 0.5


def test_correlation_within_owners_ignores_time_and_owner():
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(5), 8)
    left = random.permutation(40) * (1.0 + owner)
    came = np.tile(np.arange(8.0), 5) * 100
    for values in (owner * 10.0, came, came + 1000 * owner, np.cumsum(came), random.random(40)):
        assert partial_correlation(values, left, came, owner) < 0.5
    assert partial_correlation(left, left, came, owner) == pytest.approx(1.0)
    assert partial_correlation(-left, left, came, owner) == pytest.approx(1.0)
