"""The closed formulas, against the published figures."""

import math

import numpy as np
import pytest

from experiments.formulas import formulas
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
from torchloom_core.plugin import ettr

PLACES = 6e-5
"""Half of the last place that is published, and a little."""


@pytest.mark.parametrize("row", DALY, ids=str)
def test_dalys_first_interval_is_the_published_one(row):
    found = formulas.daly_first_order_s(save_s=row.save_s, mtbf_s=row.mtbf_s)
    assert round(found) == row.intervals_s[1]


def test_metas_estimate_is_near_the_exact_one_where_it_holds():
    for interval_s in (300.0, 900.0, 1800.0):
        job = {"save_s": 30, "mtbf_s": 11135}
        estimate = formulas.ettr_meta(**job, downtime_s=120, interval_s=interval_s)
        exact = ettr(interval_s, **job, restart_s=120)
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
    inputs = {**PREDICTION[0].inputs, "recall": 1.0}
    assert formulas.prediction_period_s(**inputs) == math.inf
    assert formulas.migration_period_s(save_s=10, mtbf_s=1000, recall=1.0) == math.inf


@pytest.mark.parametrize("row", MIGRATION, ids=str)
def test_the_migration_wastes_are_those_published(row):
    inputs = row.inputs
    job = {"save_s": inputs["save_s"], "mtbf_s": inputs["mtbf_s"]}
    period_s = formulas.migration_period_s(**job, recall=inputs["recall"])
    without = formulas.migration_waste(
        **{**inputs, "recall": 0.0}, period_s=formulas.migration_period_s(**job, recall=0.0)
    )
    assert without == pytest.approx(row.without, abs=PLACES)
    assert formulas.migration_waste(**inputs, period_s=period_s) == pytest.approx(
        row.formula, abs=PLACES
    )


def test_a_migration_pays_above_the_break_even_precision_only():
    costs = {"detect_s": 60, "restart_s": 300, "unsaved_s": 900, "pause_s": 30}
    precision = formulas.break_even_precision(**costs)
    assert precision == pytest.approx(30 / 1260)
    assert formulas.migrate_pays(precision=precision * 1.01, **costs)
    assert not formulas.migrate_pays(precision=precision * 0.99, **costs)
    nothing = dict.fromkeys(("detect_s", "restart_s", "unsaved_s"), 0)
    assert formulas.break_even_precision(**nothing, pause_s=30) == math.inf


def test_two_levels_have_the_published_first_order_ettr():
    assert formulas.two_level_count(**TWO_LEVELS_SAVES) == pytest.approx(15.49, abs=0.01)
    work_s = formulas.two_level_work_s(**TWO_LEVELS_SAVES, segments=15)
    found = formulas.two_level_ettr(**TWO_LEVELS, segments=15, work_s=work_s)
    assert found == pytest.approx(TWO_LEVELS_ETTR[0], abs=PLACES)
    # The published exact value is 0.9302; what exactly it lets fail is not.
    exact = formulas.two_level_ettr_exact(**TWO_LEVELS, segments=15, work_s=work_s)
    assert exact == pytest.approx(TWO_LEVELS_ETTR[1], abs=2e-4)


def test_two_levels_without_the_second_are_one():
    one = ettr(400, save_s=20, mtbf_s=5000, restart_s=100)
    two = formulas.two_level_ettr_exact(
        local_save_s=20,
        durable_save_s=0,
        local_restart_s=100,
        durable_restart_s=100,
        job_mtbf_s=5000,
        node_mtbf_s=1e15,
        segments=1,
        work_s=400,
    )
    assert two == pytest.approx(one, rel=1e-9)


def test_per_step_recovery_has_the_published_efficiency():
    assert formulas.per_step_efficiency(**STEPS) == pytest.approx(STEPS_EFFICIENCY[0], abs=PLACES)


def test_the_spares_needed_are_the_least_that_suffice():
    nodes, rate, repair_s = 2048, 6.5e-3 / 86400, 86400 * 1.0
    share = -math.expm1(-rate * repair_s)
    rng = np.random.default_rng(0)
    away = rng.binomial(nodes, share, 200_000)
    needed = formulas.spares_needed(
        nodes=nodes, failures_per_node_s=rate, repair_s=repair_s, confidence=0.99
    )
    assert np.mean(away <= needed) >= 0.99 - 0.001
    assert np.mean(away <= needed - 1) < 0.99
