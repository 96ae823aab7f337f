import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.policies.allreduce_run import best_ring
from torchloom_core.plugin import PluginError
from torchloom_policies.allreduce.ring_order import RingSolver, ring_of

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


def racks_of(n):
    random = np.random.default_rng(0)
    rack = random.permutation(n) // 8
    return np.where(rack[:, None] == rack, 1e9, 1e8) * (1 + 0.1 * random.random((n, n)))


def test_a_search_that_runs_out_of_time_returns_an_unproven_ring():
    ring = best_ring(racks_of(64), limit_s=1e-3)
    assert not ring.proven
    assert sorted(ring.order) == list(range(64))
    assert ring.bottleneck > 0


def test_every_solver_call_of_a_search_is_short():
    elapsed_s = list(RingSolver().search(racks_of(64), np.zeros((64, 64))))
    assert len(elapsed_s) > 5
    assert max(elapsed_s) < 0.035


def test_without_ortools_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(
        PluginError, match=r"need the extra tuner, pip install 'torchloom\[tuner\]'"
    ):
        RingSolver()


@pytest.mark.integration
def test_ortools_is_not_loaded_before_a_solver_is_made():
    code = "import sys, torchloom_policies.allreduce.ring_order; sys.exit('ortools' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
