import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom_core.plugin import Links
from torchloom_policies.allreduce.link_probes import ProbeSchedule, ring_rounds, tournament


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
