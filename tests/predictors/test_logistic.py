from typing import ClassVar

import msgspec
import numpy as np
import pytest

from tests.predictors.warming_fleet import comes_true, learned, one_hot
from torchloom_core.lab.learning import Rows
from torchloom_core.plugin import Example, ModelError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.forest import ForestPredictor
from torchloom_predictors.logistic import LogisticPredictor
from torchloom_predictors.one_rule import OneRulePredictor

BOTH = pytest.mark.parametrize("cls", [LogisticPredictor, OneRulePredictor])
ALL = pytest.mark.parametrize("cls", [LogisticPredictor, OneRulePredictor, ForestPredictor])


@pytest.mark.slow
class TestLogistic(LearnerContract):
    predictor_class = LogisticPredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0, 20.0]}


@pytest.mark.slow
class TestOneRule(LearnerContract):
    predictor_class = OneRulePredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0, 20.0]}


@pytest.mark.slow
@ALL
def test_it_finds_what_warns_and_its_probabilities_come_true(cls):
    comes_true(learned(cls), better=8)


@ALL
def test_the_reason_is_the_feature_without_which_it_would_be_judged_better(cls):
    hazard = learned(cls).forecast(one_hot())
    assert hazard.probability.argmax() == 3
    assert "temp" in hazard.why[3]


def on_sundays(days):
    """Yield a moment a day, of which on Sundays most are followed by a failure."""
    random = np.random.default_rng(4)
    for day in range(days):
        sunday = day % 7 == 3  # the first of January 1970 was a Thursday
        outcome = (random.random(50) < (0.8 if sunday else 0.05)).astype(float)
        yield Example(view=view_of(workers=50, now_s=day * 86_400.0), outcome=outcome)


@pytest.mark.parametrize(("days", "seen"), [(20, False), (60, True)])
def test_the_day_of_the_week_is_learned_once_it_was_seen_four_times(days, seen):
    options = {"seasons_s": (86_400.0, 7 * 86_400.0), "half_lives_s": (86_400.0,)}
    predictor = LogisticPredictor(LogisticPredictor.Options(horizon_s=86_400.0, **options))
    predictor.fit(on_sundays(days))
    assert any("period 7 d" in column for column in predictor.columns) == seen
    if seen:
        assert not any("period 1 d" in column for column in predictor.columns)
    wednesday, sunday = (
        predictor.forecast(view_of(workers=1, now_s=day * 86_400.0)).probability[0]
        for day in (6 + 70, 3 + 70)
    )
    assert (sunday > 3 * wednesday) == seen


def test_one_rule_reads_one_feature_and_no_other():
    predictor = learned(OneRulePredictor)
    hot, shown = one_hot(), list(predictor._learned.shown)
    rows = predictor.features.compute(hot)[:, shown]
    best = int(np.flatnonzero(predictor._trees.coefficients)[0])
    assert np.count_nonzero(predictor._trees.coefficients) == 1
    assert "temp" in predictor.columns[best]
    others = np.random.default_rng(0).normal(size=rows.shape)
    others[:, best] = rows[:, best]
    np.testing.assert_allclose(predictor._judge(others), predictor._judge(rows))


def test_a_rule_on_the_greatest_numbers_there_are_is_learned_without_a_warning():
    failed = np.arange(100) < 20
    features = np.column_stack([np.arange(100) % 7.0, np.where(failed, 1e308, -1e308)])
    options = {"metrics": (), "horizon_s": 60.0, "every_s": 1.0}
    predictor = OneRulePredictor(OneRulePredictor.Options(**options))
    rule = predictor.grow(Rows(features, failed, np.arange(100), share=1.0))
    log_odds = rule.log_odds(np.array([[0.0, 700.0], [0.0, -700.0]]))
    assert log_odds[0] > 0 > log_odds[1]


@BOTH
def test_a_column_that_is_the_same_in_all_rows_is_not_shown(cls):
    predictor = learned(cls)
    assert "newest temp" in predictor.columns
    assert not [name for name in predictor.columns if "heard" in name]
    assert len(predictor.columns) < len(predictor.features.names)


@pytest.mark.slow
def test_a_model_of_another_feature_set_is_refused_in_one_line():
    older = {**learned(LogisticPredictor).parts()}
    card = msgspec.json.decode(older["logistic.json"])
    for change in ({"features": card["features"][1:]}, {"shown": [len(card["features"])]}):
        older["logistic.json"] = msgspec.json.encode({**card, **change})
        with pytest.raises(ModelError, match=r"^logistic\.json: need [^\n]*$"):
            learned(LogisticPredictor).restore(older)
    del card["shown"]
    older["logistic.json"] = msgspec.json.encode(card)
    with pytest.raises(ModelError, match=r"^[^\n]*shown[^\n]*$"):
        learned(LogisticPredictor).restore(older)
