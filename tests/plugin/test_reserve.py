"""The price of an unavailable node depends on the standbys that are left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from torchloom_core.plugin import Costs, Reserve

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
COSTS = Costs(migrate_s=30.0, inspect_s=3600.0, replace_s=600.0, others_wait_s=600.0)
RUN_GPUS, GPUS = 2048.0, 8.0
WAIT_GPU_S = 600.0 * RUN_GPUS
"""The extra cost of a failure without a standby."""

rates = st.floats(1e-8, 1e-3)
lefts = st.integers(-1, 6)
times = st.floats(1.0, WEEK_S)


def reserve(left, failures_per_s=1e-5, **costs):
    prices = {name: getattr(COSTS, name) for name in COSTS.__struct_fields__} | costs
    return Reserve(Costs(**prices), run_gpus=RUN_GPUS, failures_per_s=failures_per_s, left=left)


def test_a_move_costs_the_pause_and_the_missing_standby():
    missed = 1.0 - 2.718281828459045 ** -(1e-5 * 4200.0)
    price = 30.0 * RUN_GPUS + missed * (3600.0 * GPUS + WAIT_GPU_S)
    assert reserve(left=0).move_gpu_s(GPUS) == pytest.approx(price)


def test_a_cordon_costs_the_nodes_time_if_standbys_are_short():
    missed = poisson.sf(1, 1e-5 * DAY_S)  # two failures while the first node is repaired
    price = missed * (WEEK_S * GPUS + WAIT_GPU_S)
    assert reserve(left=1).away_gpu_s(GPUS, WEEK_S) == pytest.approx(price)


def test_without_standbys_the_full_cost_applies():
    for rate in (0.0, 1e-5):
        away = reserve(left=-1, failures_per_s=rate).away_gpu_s(GPUS, WEEK_S)
        assert away == WEEK_S * GPUS + WAIT_GPU_S


def test_if_the_others_continue_only_the_group_is_missing():
    alone = reserve(left=-1, others_wait_s=0.0).away_gpu_s(GPUS, WEEK_S)
    assert alone == (WEEK_S + 600.0) * GPUS


@given(st.integers(0, 2000), st.floats(1e-6, 3000.0))
def test_the_probability_to_be_short_is_poissons(left, failures):
    day = reserve(left, failures / DAY_S, replace_s=0.0, others_wait_s=0.0)
    assert day.away_gpu_s(1.0, DAY_S) / DAY_S == pytest.approx(
        poisson.sf(left, failures), rel=1e-6, abs=1e-200
    )


@given(lefts, rates, times)
def test_more_standbys_make_it_cheaper(left, rate, away_s):
    few, more = (reserve(one, rate) for one in (left, left + 1))
    assert more.away_gpu_s(GPUS, away_s) <= few.away_gpu_s(GPUS, away_s)
    assert more.move_gpu_s(GPUS) <= few.move_gpu_s(GPUS)


@given(rates)
def test_the_last_standby_costs_more_than_the_one_before(rate):
    assert reserve(0, rate).move_gpu_s(GPUS) > reserve(1, rate).move_gpu_s(GPUS)


@given(st.integers(-1, 1), rates, st.floats(0.0, WEEK_S), st.floats(60.0, WEEK_S))
def test_a_longer_inspection_makes_a_move_cost_more(left, rate, inspect_s, more_s):
    short, long = (reserve(left, rate, inspect_s=s) for s in (inspect_s, inspect_s + more_s))
    assert long.inspected_gpu_s(GPUS) > short.inspected_gpu_s(GPUS)
    assert long.move_gpu_s(GPUS) >= short.move_gpu_s(GPUS)


@given(lefts, st.just(0.0) | rates, times)
def test_a_cordon_is_free_only_of_nodes_that_idle_in_a_run_that_never_fails(left, rate, lasts_s):
    cost_gpu_s = reserve(left, rate).away_gpu_s(GPUS, lasts_s)
    assert (cost_gpu_s == 0.0) == (left >= 0 and rate == 0.0)


@given(lefts, rates, times, st.floats(1.0, 100.0))
def test_more_failures_and_longer_repairs_cost_more(left, rate, s, times):
    here = reserve(left, rate).away_gpu_s(GPUS, s)
    assert reserve(left, rate * times).away_gpu_s(GPUS, s) >= here * (1 - 1e-9)
    longer = reserve(left, rate, repair_s=DAY_S * times).away_gpu_s(GPUS, s)
    assert longer >= here * (1 - 1e-9)
