"""Predictors learn from one trace in shared passes; one that fails does not stop the others."""

import numpy as np
import pytest

from tests.fitting.plugins import Blind, Heat, Options
from torchloom_core.floor.errors import PluginError
from torchloom_core.lab.fitting.passes import Passes
from torchloom_core.lab.fitting.time_split import Fitting
from torchloom_core.lab.learning import GatheredLearner, RowSample
from torchloom_core.plugin import Hazard, Need

DAY_NS = 86_400 * 10**9


class HeatRows(RowSample):
    """Keeps the newest heat."""

    def add(self, example):
        heat = example.view.latest("heat")[:, None]
        super().add(example.view.now_ns, heat, example.outcome)


class Gathers(GatheredLearner, Blind):
    """Notes of which days it learns, and is as sure as those are many."""

    name = "gathers"
    sampled = "heat"

    def __init__(self):
        super().__init__(Options())
        self.needs = (Need("heat"),)
        self.learned = []

    def gathering(self):
        return HeatRows(max_healthy=10**6, seed=0)

    def learn(self, rows):
        self.learned.append(int(rows.at_ns[-1]) / DAY_NS)

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), self.learned[-1] / 100))


class NoMore(Gathers):
    """Learns once."""

    def learn_again(self, rows):
        raise ValueError("once is enough")


class Never(Gathers):
    """Cannot learn from rows."""

    name = "never"
    tried = 0

    def learn(self, rows):
        self.tried += 1
        raise ValueError("no")

    def forecast(self, view):
        return Hazard(probability=np.full(len(view), 0.5))


class NeverAlone(Heat):
    """Cannot learn in a pass of its own."""

    name = "never_alone"
    tried = 0

    def fit(self, examples):
        self.tried += 1
        raise ValueError("no")


@pytest.fixture
def passes_of(bundle, settings):
    def made(*plugins, **more):
        begun = []
        passes = Passes(
            Fitting(bundle, settings, plugins[0]),
            plugins,
            lambda name: begun.append(name) or (lambda share: None),
            **more,
        )
        return passes, begun

    return made


def test_all_learn_once_from_the_training_time_and_forecast_the_time_after(passes_of):
    plugins = (Blind(Options()), Gathers(), Heat(Options(metrics=("heat",))))
    passes, begun = passes_of(*plugins)
    passes.learn()
    predicted = passes.forecast()
    assert plugins[1].learned == [57.0]
    assert plugins[2].level != Heat.level
    assert begun == ["pass blind", "learn", "fit heat", "forecast blind"]
    assert [*predicted] == [0, 1, 2]
    assert {*predicted[1].score[~np.isnan(predicted[1].score)]} == {0.57}


def test_later_predictors_see_what_they_need(passes_of):
    learner = Gathers()
    passes, _ = passes_of(Blind(Options()), learner)
    passes.learn()
    assert (passes.refused, learner.learned) == ({}, [57.0])


def test_row_learners_are_fitted_without_the_calibration_time_and_then_with_it(passes_of):
    learner = Gathers()
    passes, _ = passes_of(learner)
    (predicted,) = passes.learn_twice().values()
    assert learner.learned == [42.0, 57.0]
    assert {*predicted.score[~np.isnan(predicted.score)]} == {0.42}


@pytest.mark.parametrize("cls", [Never, lambda: NeverAlone(Options(metrics=("heat",)))])
def test_a_predictor_that_cannot_learn_is_tried_once_and_affects_no_other(passes_of, cls):
    broken, other = cls(), Gathers()
    passes, _ = passes_of(broken, other)
    assert [*passes.learn_twice()] == [*passes.forecast()] == [1]
    assert broken.tried == 1
    assert [*passes.refused] == [0]
    assert passes.unfitted == {}


def test_a_predictor_usable_without_a_fit_makes_forecasts(passes_of):
    passes, _ = passes_of(Never(), Gathers(), usable_unfitted={0})
    assert [*passes.learn_twice()] == [*passes.forecast()] == [0, 1]
    assert [*passes.unfitted] == [0]
    assert passes.refused == {}


def test_a_predictor_that_cannot_be_refitted_makes_no_forecasts(passes_of):
    passes, _ = passes_of(NoMore(), Gathers())
    assert [*passes.learn_twice()] == [1]
    assert str(passes.refused[0]).startswith("predictor gathers: cannot fit: ValueError: once is")


def test_what_is_wrong_with_the_first_is_raised_if_it_is_for_the_first(passes_of):
    passes, _ = passes_of(Never(), Gathers(), raise_first=True)
    with pytest.raises(PluginError, match="never: cannot fit"):
        passes.learn()


def test_without_a_usable_predictor_there_are_no_forecasts(passes_of):
    passes, begun = passes_of(Never())
    passes.learn()
    assert passes.forecast() == {}
    assert begun == ["pass never", "learn"]
