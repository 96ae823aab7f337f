"""Probes that measure another bandwidth than the next steps show."""

from dataclasses import replace

import pytest

from torchloom_policies.allreduce.ceiling import Ceiling
from torchloom_policies.allreduce.step_samples import StepSample

SLOW, QUICK = 5e6, 5e9
LATENCY_S = {"none": 1e-4}


def step(number):
    """Return a step over a slow link."""
    return StepSample(
        now_s=float(number),
        step=number,
        mode="none",
        ranks=4,
        every=1.0,
        step_s=1.2,
        compute_s=0.2,
        compress_s=0.0,
        wire_s=1.0,
        overlap_s=0.0,
        sent_bytes=SLOW,
        gradient_bytes=SLOW / 1.5,
        reductions=1.0,
    )


def refute(ceiling, proposed_s, number):
    ceiling.probed(proposed_s, SLOW, QUICK, LATENCY_S, number)
    assert ceiling.shown_by(step(number + 1)) is None
    assert ceiling.shown_by(step(number + 2)) == pytest.approx(SLOW, rel=0.01)


def test_one_slow_step_or_steps_that_began_before_the_probes_do_not_refute_them():
    ceiling = Ceiling()
    ceiling.probed(1.0, SLOW, 4 * SLOW, LATENCY_S, 1)
    quick = replace(step(4), wire_s=0.25)
    shown = [step(1), step(2), step(3), quick, replace(quick, step=5)]
    assert [ceiling.shown_by(each) for each in shown] == [None] * 5
    assert ceiling.below(QUICK, SLOW, 9.0) == QUICK


def test_three_slow_steps_refute_a_moderately_faster_probe():
    ceiling = Ceiling()
    ceiling.probed(1.0, SLOW, 4 * SLOW, LATENCY_S, 1)
    shown = [ceiling.shown_by(step(number)) for number in (3, 4, 5)]
    assert shown == [None, None, pytest.approx(SLOW, rel=0.01)]


def test_the_bandwidth_shown_by_steps_limits_probes_until_steps_show_more():
    ceiling = Ceiling()
    assert ceiling.below(QUICK, SLOW, 1.0) == QUICK
    refute(ceiling, 1.0, 1)
    assert ceiling.below(QUICK, SLOW / 10, 2.0) == pytest.approx(SLOW, rel=0.05)
    assert ceiling.below(SLOW / 2, SLOW / 10, 2.0) == SLOW / 2
    assert ceiling.below(QUICK, 3 * SLOW, 2.0) == 3 * SLOW


def test_a_ceiling_doubles_more_slowly_each_time_it_is_confirmed():
    ceiling = Ceiling()
    refute(ceiling, 1.0, 0)
    assert ceiling.below(QUICK, SLOW / 10, 61.0) == pytest.approx(2 * SLOW, rel=0.05)
    assert ceiling.below(QUICK, SLOW / 10, 1e6) == QUICK
    refute(ceiling, 2.0, 100)
    assert ceiling.below(QUICK, SLOW / 10, 221.0) == pytest.approx(2 * SLOW, rel=0.05)
