from typing import ClassVar

import msgspec
import numpy as np
import pytest

from torchloom_core.plugin import Example, ModelError, PluginError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.threshold_rules import ThresholdRulesPredictor

DAY_S = 86_400.0
NAN = np.nan


class TestContract(LearnerContract):
    predictor_class = ThresholdRulesPredictor
    options: ClassVar = {
        "rules": [
            {"when": [{"metric": "a", "level": 52}]},
            {"when": [{"metric": "a", "of": "rise", "over_s": 5}, {"metric": "b", "level": 45}]},
            {"when": [{"metric": "b", "level": 45, "over_s": 4}]},
            {"when": [{"metric": "a", "of": "age", "level": 3}], "probability": 0.5},
        ]
    }


class TestContractByDefault(LearnerContract):
    predictor_class = ThresholdRulesPredictor


def predictor(*rules, **options):
    given = {"rules": [{"when": when, "probability": p} for p, *when in rules], **options}
    return ThresholdRulesPredictor(msgspec.convert(given, ThresholdRulesPredictor.Options))


def probability(when, metrics, **view):
    return predictor((0.3, when)).forecast(view_of(metrics, **view)).probability.tolist()


def test_before_fitting_a_rule_has_the_probability_of_the_options():
    both = [{"metric": "smart_5"}, {"metric": "smart_197"}]
    rules = predictor((0.1, {"metric": "smart_5"}), (0.4, *both), (0.2, {"metric": "smart_197"}))
    hazard = rules.forecast(
        view_of({"smart_5": [0.0, 9.0, 9.0, 0.0], "smart_197": [0.0, 0.0, 1.0, 1.0]})
    )
    assert hazard.probability.tolist() == [0.0, 0.1, 0.4, 0.2]
    assert hazard.why == {
        1: "smart_5 > 0",
        2: "smart_5 > 0 and smart_197 > 0",
        3: "smart_197 > 0",
    }


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [(">", [0, 0, 0.3]), (">=", [0, 0.3, 0.3]), ("<", [0.3, 0, 0]), ("<=", [0.3, 0.3, 0])],
)
def test_each_comparison_is_what_it_looks_like(comparison, expected):
    when = {"metric": "temp", "comparison": comparison, "level": 80}
    assert probability(when, {"temp": [79.0, 80.0, 81.0]}) == expected


def test_for_how_long_means_without_exception():
    when = {"metric": "temp", "level": 80, "over_s": 4}
    metrics = {"temp": [[90.0] * 4, [90, 90, 70, 90], [70, 90, 90, 90], [90, NAN, 90, 90]]}
    assert probability(when, metrics) == [0.3, 0.0, 0.0, 0.3]


def test_with_most_samples_missing_a_duration_is_unknown():
    when = {"metric": "temp", "level": 80, "over_s": 4}
    found = probability(when, {"temp": [[NAN, NAN, NAN, 90.0], [NAN, NAN, 90.0, 90.0]]})
    assert np.isnan(found).tolist() == [True, False]


def test_a_rise_is_from_the_first_to_the_last_sample_there_is():
    when = {"metric": "errors", "of": "rise", "level": 2, "over_s": 3 * DAY_S}
    metrics = {"errors": [[0.0, 1.0, 3.0], [NAN, 0.0, 2.0], [0.0, 3.0, NAN], [NAN, NAN, 9.0]]}
    found = probability(when, metrics, tick_s=DAY_S, stale_after_s=3 * DAY_S)
    assert found[:3] == [0.3, 0.0, 0.3]
    assert np.isnan(found[3])


def test_a_metric_that_disappears_is_a_rule_too():
    when = {"metric": "temp", "of": "age", "level": 2}
    metrics = {"temp": [[50.0] * 4, [50.0, NAN, NAN, NAN], [NAN] * 4]}
    assert probability(when, metrics) == [0.0, 0.3, 0.3]


def test_a_worker_that_no_rule_can_decide_gets_no_forecast():
    rules = predictor((0.1, {"metric": "a"}), (0.2, {"metric": "b"}))
    hazard = rules.forecast(view_of({"a": [NAN, 1.0, 0.0], "b": [NAN, NAN, NAN]}))
    assert np.isnan(hazard.probability).tolist() == [True, False, False]
    assert hazard.probability[1:].tolist() == [0.1, 0.0]


def test_fitting_puts_the_measured_precision_in_the_place_of_the_options():
    rules = predictor((0.9, {"metric": "a"}), (0.9, {"metric": "a", "level": 5}))
    # Of 40 moments above 0, 10 are above 5, and 8 of those fail; of 60 others 2 do.
    a = np.r_[np.full(10, 6.0), np.full(30, 1.0), np.zeros(60)]
    outcome = np.zeros(100)
    outcome[[0, 1, 2, 3, 4, 5, 6, 7, 98, 99]] = 1.0
    rules.fit([Example(view=view_of({"a": a}), outcome=outcome)])
    hazard = rules.forecast(view_of({"a": [6.0, 1.0, 0.0]}))
    prior = 10 * 0.1
    expected = [(8 + prior) / 20, (8 + prior) / 50, (2 + prior) / 70]
    assert hazard.probability == pytest.approx(expected)


def test_a_rule_that_never_matched_gets_the_prevalence():
    rules = predictor((0.9, {"metric": "a", "level": 100}))
    outcome = np.r_[np.ones(3), np.zeros(97)]
    rules.fit([Example(view=view_of({"a": np.zeros(100)}), outcome=outcome)])
    assert rules.forecast(view_of({"a": [101.0]})).probability == pytest.approx([0.03])


def test_a_model_of_other_rules_is_refused():
    fitted, other = predictor((0.1, {"metric": "a"})), predictor((0.1, {"metric": "b"}))
    fitted.fit([Example(view=view_of({"a": [0.0, 1.0]}), outcome=np.array([0.0, 1.0]))])
    with pytest.raises(ModelError, match="need the rules of the options, b > 0, was a > 0"):
        other.restore(fitted.parts())


def test_without_a_failure_there_is_no_precision_to_measure():
    example = Example(view=view_of({"a": [0.0, 1.0]}), outcome=np.array([0.0, NAN]))
    with pytest.raises(PluginError, match="was none in 1 labelled moments of workers"):
        predictor((0.1, {"metric": "a"})).fit([example])


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ({"metric": "a", "of": "rise"}, "a: need over_s > 0 for a rise, was 0"),
        ({"metric": "a", "of": "age", "over_s": 9}, "a: need no over_s for an age, was 9"),
        ({"metric": "a", "comparison": "=="}, "Invalid enum value"),
    ],
)
def test_conditions_that_make_no_sense_are_refused_with_their_place(when, message):
    with pytest.raises(msgspec.ValidationError, match=message) as caught:
        predictor((0.1, when))
    assert "$.rules[0].when[0]" in str(caught.value)
