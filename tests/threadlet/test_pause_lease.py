"""How long a pause lasts, for any messages or none."""

import math
from datetime import timedelta
from types import SimpleNamespace

import pytest

from torchloom_core.wire.messages import PauseState
from torchloom_threadlet.adapters.torchft.adapter import _longest_pause_s
from torchloom_threadlet.trainer.pause_lease import (
    LAPSED,
    LEASE_S,
    PROVISIONAL_S,
    TOO_LONG,
    UNCONFIRMED,
    PauseLease,
)


def pause_state(verdict="", over=""):
    return PauseState(run="run", epoch=1, verdict=verdict, over=over)


@pytest.fixture
def lease():
    lease = PauseLease()
    lease.begin("p1.1", 100.0)
    return lease


def test_a_pause_waits_a_moment_for_its_confirmation(lease):
    assert lease.left_s(100.0) == PROVISIONAL_S
    assert lease.left_s(102.0) < 0
    assert lease.end(102.0) == UNCONFIRMED


def test_each_confirmation_extends_the_pause(lease):
    for now_s in range(101, 500):
        lease.update(pause_state("p1.1"), float(now_s))
        assert lease.left_s(now_s) == LEASE_S
    assert lease.end(502.5) == LAPSED


@pytest.mark.parametrize("state", [pause_state(), pause_state("p1.2"), pause_state(over="p1.1")])
def test_a_report_without_the_pause_ends_it_without_a_warning(lease, state):
    lease.update(pause_state("p1.1"), 101.0)
    lease.update(state, 101.5)
    assert lease.left_s(101.5) == 0
    assert lease.end(101.5) == ""


def test_a_pause_without_a_cause_is_never_confirmed():
    lease = PauseLease()
    lease.begin("", 100.0)
    lease.update(pause_state(), 101.0)
    assert lease.left_s(101.0) == PROVISIONAL_S - 1


def test_no_pause_outlasts_the_longest_despite_confirmations():
    lease = PauseLease()
    lease.longest_s = 48.0
    lease.begin("p1.1", 100.0)
    for now_s in range(100, 148):
        lease.update(pause_state("p1.1"), float(now_s))
    assert lease.left_s(147.0) == 1.0
    assert lease.left_s(148.0) == 0
    assert lease.end(148.0) == TOO_LONG


def test_a_cancelled_pause_is_remembered(lease):
    lease.update(pause_state(over="p1.2"), 101.0)
    assert lease.is_over("p1.2")
    assert not lease.is_over("p1.3")
    assert not lease.is_over("")


@pytest.mark.parametrize(
    ("manager", "longest_s"),
    [
        (SimpleNamespace(_quorum_timeout=timedelta(seconds=10)), 8.0),
        (SimpleNamespace(_quorum_timeout=timedelta(0)), 48.0),
        (SimpleNamespace(_quorum_timeout=10), 48.0),
        (SimpleNamespace(), 48.0),
    ],
)
def test_a_pause_ends_before_torchfts_quorum_time_out(manager, longest_s):
    assert _longest_pause_s(manager) == pytest.approx(longest_s)
    assert math.isinf(PauseLease().longest_s)
