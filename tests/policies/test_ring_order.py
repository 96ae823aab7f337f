"""The ring whose slowest link is fastest, and the search for it over several ticks."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.policies.allreduce_run import best_ring
from torchloom_core.plugin import Links
from torchloom_policies.allreduce.ring_order import RingAdvice, RingSolver, ring_of

SPEED = st.sampled_from([0.0, 1e6, 2e6, 3e6, 5e7, 1e9])


@st.composite
def networks(draw):
    n = draw(st.integers(1, 7))
    table = draw(st.lists(SPEED, min_size=n * n, max_size=n * n))
    delays = draw(st.lists(st.sampled_from([0.0, 1e-4, 0.3]), min_size=n * n, max_size=n * n))
    return np.array(table).reshape(n, n), np.array(delays).reshape(n, n)


def all_rings(speed, delay):
    for rest in itertools.permutations(range(1, len(speed))):
        ring = ring_of((0, *rest), speed, delay)
        if ring is not None:
            yield ring


@settings(max_examples=examples(150), deadline=None)
@given(networks())
def test_the_ring_is_the_best_of_all_orders(network):
    speed, delay = network
    ring = best_ring(speed, delay)
    best = max(
        all_rings(speed, delay), key=lambda ring: (ring.bottleneck, -ring.seconds), default=None
    )
    if best is None:
        assert ring is None
    else:
        assert ring.proven
        assert ring.bottleneck == best.bottleneck
        assert ring.seconds == pytest.approx(best.seconds, rel=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_sixty_four_are_ordered_to_the_proven_optimum(seed):
    speed = np.exp(1.5 * np.random.default_rng(seed).normal(size=(64, 64))) * 1e7
    ring = best_ring(speed)
    assert ring.proven
    assert sorted(ring.order) == list(range(64))
    # No ring is faster than the slowest among the fastest links of each worker.
    np.fill_diagonal(speed, 0)
    assert ring.bottleneck <= min(speed.max(axis=0).min(), speed.max(axis=1).min())


def test_a_search_that_runs_out_of_time_returns_an_unproven_ring():
    ring = best_ring(racks(), limit_s=1e-3)
    assert not ring.proven
    assert sorted(ring.order) == list(range(64))
    assert ring.bottleneck > 0


def test_every_solver_call_of_a_search_is_short():
    elapsed_s = list(RingSolver().search(racks(), np.zeros((64, 64))))
    assert len(elapsed_s) > 5
    assert max(elapsed_s) < 0.035


@pytest.mark.integration
def test_ortools_is_not_loaded_before_a_solver_is_made():
    code = "import sys, torchloom_policies.allreduce.ring_order; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.integration
def test_an_interrupt_reaches_python_after_a_search():
    code = (
        "import signal, numpy, torchloom_policies.allreduce.ring_order as ring_order\n"
        "list(ring_order.RingSolver().search(numpy.ones((4, 4)), numpy.zeros((4, 4))))\n"
        "try: signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt: print('interrupted')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "interrupted\n"), run.stderr


def links_of(speed):
    speed = np.array(speed, dtype=float)
    np.fill_diagonal(speed, np.nan)
    return Links(
        bytes_per_s=speed,
        latency_s=np.full_like(speed, 1e-4),
        age_s=np.zeros_like(speed),
        spread=np.zeros_like(speed),
    )


def racks(n=64, seed=0):
    random = np.random.default_rng(seed)
    rack = random.permutation(n) // 8
    return np.where(rack[:, None] == rack, 1e9, 1e8) * (1 + 0.1 * random.random((n, n)))


def names(n):
    return [f"g{i:03}" for i in range(n)]


def solver_calls(monkeypatch):
    """Record the time limit of each call of the solver."""
    calls, call = [], RingSolver._cycle
    monkeypatch.setattr(
        RingSolver,
        "_cycle",
        lambda self, links, limit_s, *more: (
            calls.append(limit_s) or call(self, links, limit_s, *more)
        ),
    )
    return calls


@pytest.mark.slow
def test_a_hard_search_continues_at_the_next_ticks_call_by_call(monkeypatch):
    calls, advice = solver_calls(monkeypatch), RingAdvice(wanted=True)
    links, found, ticks = links_of(racks()), None, 0
    while found is None:
        before = len(calls)
        found = advice.better(names(64), range(64), links)
        ticks += 1
        assert len(calls) - before <= 4
        assert max(calls[before:], default=0) <= 0.02
    assert 4 < ticks < 20
    assert found[0] == best_ring(links.bytes_per_s, links.latency_s)


def test_a_result_is_reused_until_the_links_change(monkeypatch):
    calls, advice = solver_calls(monkeypatch), RingAdvice(wanted=True)
    links = links_of(racks(16))
    while (first := advice.better(names(16), range(16), links)) is None:
        pass
    done = len(calls)
    again = advice.better(names(16), range(16), links_of(1.05 * links.bytes_per_s))
    assert again[0] == first[0]
    assert len(calls) == done
    advice.better(names(16), range(16), links_of(racks(16, seed=1)))
    assert len(calls) > done


@pytest.mark.slow
def test_a_search_ends_even_if_every_measurement_differs():
    advice, random = RingAdvice(wanted=True), np.random.default_rng(0)
    for ticks in itertools.count(1):
        noisy = links_of(racks() * np.exp(0.2 * random.normal(size=(64, 64))))
        if advice.better(names(64), range(64), noisy) is not None:
            break
        assert ticks < 20


def test_a_search_ends_once_a_link_becomes_unknown():
    advice = RingAdvice(wanted=True)
    links = links_of(racks())
    assert advice.better(names(64), range(64), links) is None
    gone = links.bytes_per_s.copy()
    gone[0, 1] = np.nan
    assert advice.better(names(64), range(64), links_of(gone)) is None
    assert advice._search is None


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        (names(65), "need at most 64 groups, was 65"),
        ([f"{i:064}" for i in range(64)], "group names of at most 4096 characters in total, was"),
    ],
)
def test_too_many_groups_or_too_long_names_are_not_ordered(groups, why):
    advice, n = RingAdvice(wanted=True), len(groups)
    assert why in advice.trouble(groups)
    assert not advice.can_order(groups)
    assert advice.better(groups, range(n), links_of(np.full((n, n), 1e8))) is None
