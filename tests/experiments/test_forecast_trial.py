"""The trial that the experiments on recorded traces share."""

import numpy as np
import pytest

from experiments.forecast_trial.trial import DAY_NS, DAY_S, Candidate, Fold, Trial, run
from tests.evaluate.traces import event, writing
from torchloom_core.lab.evaluate.forecasts.labels import Task
from torchloom_core.lab.trace import Bundle, Component
from torchloom_core.plugin import Hazard
from torchloom_predictors.fault_history import FaultHistoryPredictor

NODES, DAYS, CUT_D = 40, 80, 48


class Upside:
    """Says the opposite of the fault count."""

    name = "upside"
    Options = FaultHistoryPredictor.Options

    def __init__(self, options):
        self._count = FaultHistoryPredictor(options)
        self.needs = self._count.needs
        self.horizon_s, self.every_s = options.horizon_s, options.every_s

    def forecast(self, view):
        return Hazard(probability=1 - self._count.forecast(view).probability)


TRIAL = Trial(
    name="made up",
    task=Task(horizon_s=3 * DAY_S, repair_s=3600.0),
    tick_s=DAY_S,
    every_s=DAY_S,
    learn_every_s=DAY_S,
    folds=(Fold(cut_d=20, until_d=34), Fold(cut_d=34, until_d=CUT_D)),
    cut_d=CUT_D,
    candidates=(
        Candidate(name="upside", cls=Upside),
        Candidate(name="count", cls=FaultHistoryPredictor, options={"half_life_s": 20 * DAY_S}),
        Candidate(name="short count", cls=FaultHistoryPredictor, options={"half_life_s": 3600.0}),
    ),
    row="upside",
    beside=("short count",),
    baselines=(
        Candidate(
            name="long count", cls=FaultHistoryPredictor, options={"half_life_s": 60 * DAY_S}
        ),
    ),
    published=0.1,
    false_alarms_per_node_day=0.05,
)


def trace(path, late_seed=0):
    """Write a fleet of which few nodes fail often; what comes after the cut has its own seed."""
    early, late = np.random.default_rng(1), np.random.default_rng([2, late_seed])
    rates = np.where(np.arange(NODES) < 5, 0.15, 0.004)
    with writing(path, 0, DAYS * DAY_NS) as bundle:
        for node in range(NODES):
            bundle.add(Component(id=f"n{node:02}", kind="node"))
        for day in range(DAYS):
            random = early if day < CUT_D else late
            for node in np.flatnonzero(random.random(NODES) < rates):
                bundle.add(event(f"n{node:02}", 24 * day + 12, 24 * day + 13))
    return Bundle.open(path)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return run(TRIAL, trace(tmp_path_factory.mktemp("trial") / "a.tltrace"))


def test_the_best_on_the_folds_is_chosen_and_beats_its_opposite(outcome):
    assert outcome.chosen == max(outcome.validated, key=lambda one: one.mean).candidate != "upside"
    assert outcome.above_row.low > 0
    assert outcome.verdict.endswith("the whole interval is above 0.")


def test_nothing_after_the_cut_touches_choice_or_thresholds(outcome, tmp_path):
    other = run(TRIAL, trace(tmp_path / "b.tltrace", late_seed=1))
    assert other.validated == outcome.validated
    assert other.chosen == outcome.chosen
    assert other.scores[0].auprc != outcome.scores[0].auprc


def test_all_rows_are_scored_on_the_same_moments_after_the_cut(outcome):
    assert outcome.scores[0].predictor == outcome.chosen
    names = {score.predictor for score in outcome.scores}
    assert names == {outcome.chosen, "upside", "short count", "long count", "random"}
    assert len({(s.samples, s.positives, s.from_ns, s.until_ns) for s in outcome.scores}) == 1
    assert outcome.scores[0].from_ns > outcome.cut_ns
