"""The links to probe next, their results, and steps that show another bandwidth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.plugin import Links
from torchloom_policies.allreduce.link_probes import (
    Ceiling,
    ProbedLinks,
    ProbeSchedule,
    ring_rounds,
    tournament,
)
from torchloom_policies.allreduce.step_samples import StepSample


def links(n):
    return Links(*(np.full((n, n), np.nan) for _ in range(4)))


def measured(table, pairs, now_s, at):
    for pair in pairs:
        at[pair] = now_s
    for pair, when_s in at.items():
        table.age_s[pair] = now_s - when_s


@given(st.integers(2, 17))
def test_a_tournament_has_each_pair_once_each_way_in_disjoint_rounds(n):
    rounds = tournament(n)
    pairs = [pair for one in rounds for pair in one]
    assert sorted(pairs) == [(i, j) for i in range(n) for j in range(n) if i != j]
    for one in rounds:
        named = [worker for pair in one for worker in pair]
        assert len(named) == len(set(named))


@given(st.integers(2, 17), st.randoms())
def test_the_ring_is_probed_in_rounds_of_disjoint_pairs(n, random):
    ring = random.sample(range(n), n)
    rounds = ring_rounds(ring)
    assert {p for one in rounds for p in one} == set(zip(ring, [*ring[1:], ring[0]], strict=True))
    for one in rounds:
        named = [worker for pair in one for worker in pair]
        assert len(named) == len(set(named))


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_all_links_are_probed_in_turn(n):
    schedule, table, at, seen = ProbeSchedule(1.0), links(n), {}, []
    for tick in range(2 * n + 2):
        measured(table, seen[-1] if seen else (), float(tick), at)
        pairs = schedule.next_round(table, range(n), of_ring=False)
        schedule.proposed(pairs, table, float(tick))
        seen.append(pairs)
    everyone = {(i, j) for i in range(n) for j in range(n) if i != j}
    assert {pair for one in seen for pair in one} == everyone


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_after_a_change_of_links_the_rounds_follow_each_other_at_once(n):
    schedule, table, at, seen = ProbeSchedule(100.0), links(n), {}, []
    schedule.hurry(0.0)
    for tick in range(20):
        if schedule.is_due(table, float(tick)):
            pairs = schedule.next_round(table, range(n), of_ring=True)
            schedule.proposed(pairs, table, float(tick))
            seen.append(pairs)
            measured(table, pairs, tick + 0.5, at)
            measured(table, (), tick + 1.0, at)
    ring = ring_rounds(range(n))
    assert set(seen) == set(ring)
    assert len(seen) <= 4


def test_rounds_without_results_become_less_frequent():
    schedule, table, times = ProbeSchedule(1.0), links(4), []
    for now_s in range(100):
        if schedule.is_due(table, float(now_s)):
            times.append(now_s)
            pairs = schedule.next_round(table, range(4), of_ring=True)
            schedule.proposed(pairs, table, float(now_s))
    assert max(np.diff(times)) == 16
    assert len(times) < 15


GROUPS = ("g0", "g1", "g2")


def links_with(now_s, measured):
    """Return links with these measurements: from, to, bytes per second, when."""
    found = Links(*(np.full((3, 3), np.nan) for _ in range(4)))
    for pair, (bytes_per_s, at_s) in measured.items():
        found.bytes_per_s[pair], found.age_s[pair] = bytes_per_s, now_s - at_s
    return found


def test_a_link_measured_for_the_first_time_is_not_evidence_of_a_change():
    probed = ProbedLinks()
    assert probed.take(GROUPS, links_with(10.0, {(0, 1): (6e6, 9.0)}), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0), (2, 0): (1.1e8, 19.5)}
    assert probed.take(GROUPS, links_with(20.0, now), 20.0) == 19.0
    assert probed.take(GROUPS, links_with(30.0, {(1, 2): (1e6, 29.0)}), 30.0) is None


def test_links_that_changed_together_are_not_reported_again_one_by_one():
    probed = ProbedLinks()
    before = {(0, 1): (6e6, 9.0), (1, 2): (6e6, 9.0), (2, 0): (6e6, 9.0)}
    assert probed.take(GROUPS, links_with(10.0, before), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0)}
    assert probed.take(GROUPS, links_with(20.0, now), 20.0) == 19.0
    for at_s, pair in ((29.0, (1, 2)), (39.0, (2, 0))):
        now[pair] = 1.2e8, at_s
        assert probed.take(GROUPS, links_with(at_s + 1.0, now), at_s + 1.0) is None
    assert np.isfinite(probed.bytes_per_s).sum() == 3


def test_the_links_have_changed_only_if_all_measured_again_have():
    probed = ProbedLinks()
    before = {(0, 1): (6e6, 9.0), (1, 2): (6e6, 9.0)}
    assert probed.take(GROUPS, links_with(10.0, before), 10.0) is None
    now = {(0, 1): (1.2e8, 19.0), (1, 2): (6.1e6, 19.0)}
    assert probed.take(GROUPS, links_with(20.0, now), 20.0) is None
    assert probed.bytes_per_s[0, 1] == 1.2e8


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
