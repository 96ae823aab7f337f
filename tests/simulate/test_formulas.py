"""The closed formulas, against the published figures."""

import math

import numpy as np
import pytest

from tests.simulate.rows import (
    DALY,
    MIGRATION,
    PREDICTION,
    STEPS,
    STEPS_EFFICIENCY,
    TWO_LEVELS,
    TWO_LEVELS_ETTR,
)
from torchloom_core.simulate import formulas

PLACES = 6e-5
"""Half of the last place that is published, and a little."""


@pytest.mark.parametrize("row", DALY, ids=str)
def test_the_four_intervals_are_those_published(row):
    found = [
        interval(row.mtbf_s, row.save_s)
        for interval in (
            formulas.young_s,
            formulas.daly_first_order_s,
            formulas.daly_s,
            formulas.exact_interval_s,
        )
    ]
    assert [round(one) for one in found] == list(row.intervals_s)


@pytest.mark.parametrize("row", DALY, ids=str)
def test_the_exact_ettr_is_that_published(row):
    interval_s = formulas.daly_s(row.mtbf_s, row.save_s)
    ettr = formulas.ettr_exact(row.mtbf_s, row.save_s, row.restart_s, row.detect_s, interval_s)
    assert ettr == pytest.approx(row.ettr, abs=PLACES)


@pytest.mark.parametrize("row", DALY, ids=str)
def test_nothing_beats_the_exact_interval(row):
    best_s = formulas.exact_interval_s(row.mtbf_s, row.save_s)

    def ettr(interval_s):
        return formulas.ettr_exact(row.mtbf_s, row.save_s, row.restart_s, row.detect_s, interval_s)

    around = [ettr(best_s * factor) for factor in np.linspace(0.8, 1.2, 41)]
    assert max(around) <= ettr(best_s) * (1 + 1e-12)


def test_youngs_interval_is_a_sixth_too_long_and_hardly_costs_at_a_tenth():
    mtbf_s, save_s = 1000.0, 100.0
    young_s, best_s = (
        formulas.young_s(mtbf_s, save_s),
        formulas.exact_interval_s(mtbf_s, save_s),
    )
    cost = formulas.ettr_exact(mtbf_s, save_s, save_s, 0, best_s) - formulas.ettr_exact(
        mtbf_s, save_s, save_s, 0, young_s
    )
    assert young_s / best_s == pytest.approx(1.17, abs=0.01)
    assert cost == pytest.approx(0.0026, abs=1e-4)


def test_a_checkpoint_that_costs_two_mtbfs_is_saved_once_an_mtbf():
    assert formulas.daly_s(100.0, 200.0) == 100.0


def test_metas_estimate_is_near_the_exact_one_where_it_holds():
    for interval_s in (300.0, 900.0, 1800.0):
        estimate = formulas.ettr_meta(11135, 30, 120, interval_s)
        exact = formulas.ettr_exact(11135, 30, 120, 0, interval_s)
        assert estimate == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("row", PREDICTION, ids=str)
def test_the_prediction_wastes_are_those_published(row):
    inputs = row.inputs
    none = {**inputs, "recall": 0.0}
    period_s = formulas.prediction_period_s(**inputs)
    without = formulas.prediction_waste(
        **none, period_s=math.sqrt(2 * inputs["save_s"] * inputs["mtbf_s"])
    )
    assert without == pytest.approx(row.without, abs=PLACES)
    assert formulas.prediction_waste(**inputs, period_s=period_s) == pytest.approx(
        row.formula, abs=PLACES
    )
    assert formulas.prediction_waste_long(**inputs, period_s=period_s) == pytest.approx(
        row.better, abs=PLACES
    )


def test_a_period_has_no_end_when_every_failure_is_predicted():
    assert formulas.prediction_period_s(1000, 10, 10, 10, 10, 1.0, 0.5) == math.inf
    assert formulas.migration_period_s(1000, 10, 1.0) == math.inf


@pytest.mark.parametrize("row", MIGRATION, ids=str)
def test_the_migration_wastes_are_those_published(row):
    inputs = row.inputs
    mtbf_s, save_s = inputs["mtbf_s"], inputs["save_s"]
    period_s = formulas.migration_period_s(mtbf_s, save_s, inputs["recall"])
    without = formulas.migration_waste(
        **{**inputs, "recall": 0.0}, period_s=formulas.migration_period_s(mtbf_s, save_s, 0.0)
    )
    assert without == pytest.approx(row.without, abs=PLACES)
    assert formulas.migration_waste(**inputs, period_s=period_s) == pytest.approx(
        row.formula, abs=PLACES
    )


def test_a_migration_pays_above_the_break_even_precision_only():
    costs = {"detect_s": 60, "restart_s": 300, "unsaved_s": 900, "pause_s": 30}
    precision = formulas.break_even_precision(**costs)
    assert precision == pytest.approx(30 / 1260)
    assert formulas.migrate_pays(precision * 1.01, **costs)
    assert not formulas.migrate_pays(precision * 0.99, **costs)
    assert formulas.break_even_precision(0, 0, 0, 30) == math.inf


def test_two_levels_have_the_published_first_order_ettr():
    saves = (5, 120, 14400, 144000)
    assert formulas.two_level_count(*saves) == pytest.approx(15.49, abs=0.01)
    work_s = formulas.two_level_work_s(*saves, 15)
    found = formulas.two_level_ettr(**TWO_LEVELS, segments=15, work_s=work_s)
    assert found == pytest.approx(TWO_LEVELS_ETTR[0], abs=PLACES)
    # The published exact value is 0.9302; what exactly it lets fail is not.
    exact = formulas.two_level_ettr_exact(**TWO_LEVELS, segments=15, work_s=work_s)
    assert exact == pytest.approx(TWO_LEVELS_ETTR[1], abs=2e-4)


def test_two_levels_without_the_second_are_one():
    one = formulas.ettr_exact(5000, 20, 100, 0, 400)
    two = formulas.two_level_ettr_exact(20, 0, 100, 100, 5000, 1e15, 1, 400)
    assert two == pytest.approx(one, rel=1e-9)


def test_per_step_recovery_has_the_published_efficiency():
    assert formulas.per_step_efficiency(**STEPS) == pytest.approx(STEPS_EFFICIENCY[0], abs=PLACES)


def test_the_spares_needed_are_the_least_that_suffice():
    nodes, rate, repair_s = 2048, 6.5e-3 / 86400, 86400 * 1.0
    share = -math.expm1(-rate * repair_s)
    rng = np.random.default_rng(0)
    away = rng.binomial(nodes, share, 200_000)
    needed = formulas.spares_needed(nodes, rate, repair_s, 0.99)
    assert np.mean(away <= needed) >= 0.99 - 0.001
    assert np.mean(away <= needed - 1) < 0.99
