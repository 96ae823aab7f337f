"""The fleet model, played many times, against the formulas and the published Monte Carlo."""

import pytest

from experiments.formulas import formulas, monte_carlo
from tests.simulate.rows import (
    DALY,
    MIGRATION,
    PREDICTION,
    STEPS,
    STEPS_EFFICIENCY,
    TWO_LEVELS,
    TWO_LEVELS_ETTR,
    TWO_LEVELS_SAVES,
)
from torchloom_core.plugin import daly_s, ettr

pytestmark = pytest.mark.slow

ERRORS = 3.5
"""Standard errors that the mean of the runs may be off."""
ROUNDING = 5e-5


def assert_is_near(values, published, *, largest_error):
    mean, error = monte_carlo.estimate(values)
    assert error < largest_error
    assert abs(mean - published) <= ERRORS * error + ROUNDING, (mean, error, published)


def wastes(results):
    return [1 - result.ettr for result in results]


@pytest.mark.parametrize(
    ("row", "failures", "largest_error"),
    list(zip(DALY, (800, 1200, 3000), (6e-4, 8e-4, 2e-3), strict=True)),
)
def test_periodic_checkpoints_waste_as_in_dalys_formula(row, failures, largest_error):
    interval_s = daly_s(save_s=row.save_s, mtbf_s=row.mtbf_s)
    costs = {
        "mtbf_s": row.mtbf_s,
        "save_s": row.save_s,
        "restart_s": row.restart_s,
        "detect_s": row.detect_s,
    }
    ettrs = [
        monte_carlo.play_checkpoints(seed, failures, **costs, interval_s=interval_s).ettr
        for seed in range(20)
    ]
    exact = ettr(interval_s, **costs)
    assert_is_near(ettrs, row.monte_carlo, largest_error=largest_error)
    assert_is_near(ettrs, exact, largest_error=largest_error)


@pytest.mark.parametrize("row", PREDICTION, ids=["long", "short"])
def test_proactive_checkpoints_waste_as_in_the_published_monte_carlo(row):
    period_s = formulas.prediction_period_s(**row.inputs)
    results = [
        monte_carlo.play_predictions(seed, 1500, **row.inputs, period_s=period_s)
        for seed in range(20)
    ]
    assert all(result.proactive_saves for result in results)
    assert_is_near(wastes(results), row.monte_carlo, largest_error=7e-4)


@pytest.mark.parametrize(
    ("row", "failures", "largest_error"),
    list(zip(MIGRATION, (1000, 200), (7e-4, 3e-3), strict=True)),
)
def test_migrations_waste_as_in_the_published_monte_carlo(row, failures, largest_error):
    inputs = row.inputs
    period_s = formulas.migration_period_s(
        save_s=inputs["save_s"], mtbf_s=inputs["mtbf_s"], recall=inputs["recall"]
    )
    results = [
        monte_carlo.play_migrations(seed, failures, **inputs, period_s=period_s)
        for seed in range(16)
    ]
    assert_is_near(wastes(results), row.monte_carlo, largest_error=largest_error)
    avoided = [one.avoided / (one.avoided + one.failures) for one in results]
    assert_is_near(avoided, inputs["recall"], largest_error=0.01)


def test_two_levels_of_checkpoints_waste_as_in_the_published_monte_carlo():
    segments = round(formulas.two_level_count(**TWO_LEVELS_SAVES) - 0.5)
    pattern = {
        "segments": segments,
        "work_s": formulas.two_level_work_s(**TWO_LEVELS_SAVES, segments=segments),
    }
    ettrs = [
        monte_carlo.play_two_levels(seed, 600, **TWO_LEVELS, **pattern).ettr for seed in range(20)
    ]
    assert_is_near(ettrs, TWO_LEVELS_ETTR[2], largest_error=9e-4)
    exact = formulas.two_level_ettr_exact(**TWO_LEVELS, **pattern)
    assert_is_near(ettrs, exact, largest_error=9e-4)


def test_steps_are_lost_as_in_the_published_monte_carlo():
    ettrs = [monte_carlo.play_steps(seed, 2500, **STEPS).ettr for seed in range(20)]
    assert_is_near(ettrs, STEPS_EFFICIENCY[1], largest_error=1e-3)
    assert_is_near(ettrs, formulas.per_step_efficiency(**STEPS), largest_error=1e-3)
