"""Measurement and duration of a simulated probe."""

import numpy as np
import pytest

from torchloom_core.lab.simulate.links import probe_link

MIB = 1 << 20


def probed(bytes_per_s, noise=0.0, seed=0):
    return probe_link(bytes_per_s, 0.0003, MIB, noise, np.random.default_rng(seed))


def test_without_noise_a_probe_measures_what_the_link_carries():
    measured, took_s = probed(25e6)
    assert (measured.bytes_per_s, measured.latency_s, measured.spread) == (25e6, 0.0003, 0.0)
    assert took_s == pytest.approx(MIB / 25e6)


def test_a_slow_link_is_measured_for_two_seconds_and_no_longer():
    assert probed(MIB / 3)[1] == 2.0
    measured, took_s = probed(MIB / 30, noise=0.1)
    assert took_s == 2.0
    assert measured.spread is None  # one burst has come in part, and no other


def test_noise_is_reported_as_spread_and_keeps_the_mean_rate():
    found = [probed(25e6, noise=0.1, seed=seed)[0] for seed in range(300)]
    rates = np.array([each.bytes_per_s for each in found])
    assert rates.mean() == pytest.approx(25e6, rel=0.02)
    assert 0.03 < rates.std() / 25e6 < 0.1
    assert np.mean([each.spread for each in found]) == pytest.approx(0.08, rel=0.2)
    assert found == [probed(25e6, noise=0.1, seed=seed)[0] for seed in range(300)]
