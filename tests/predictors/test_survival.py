from typing import ClassVar

import numpy as np
import pytest

from tests.predictors.fault_bursts import DAY_S, START_S, grid
from torchloom_core.plugin import Example, Fault, ModelError, PluginError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.survival import SurvivalPredictor


class TestContract(LearnerContract):
    predictor_class = SurvivalPredictor
    options: ClassVar = {"every_s": 1.0, "horizon_s": 5.0}


class TestContractWithMetrics(LearnerContract):
    predictor_class = SurvivalPredictor
    options: ClassVar = {"metrics": ["temp"], "spans_s": [5.0], "horizon_s": 3.0}


def predictor(**options):
    wanted = {"horizon_s": 7 * DAY_S, "every_s": DAY_S}
    return SurvivalPredictor(SurvivalPredictor.Options(**{**wanted, **options}))


@pytest.fixture(scope="module")
def bursts():
    return grid(4.0)


@pytest.fixture(scope="module")
def fitted(bursts):
    learner = predictor()
    learner.fit(bursts[:160])
    return learner


def ages(*days):
    """Return a view of one node for each age of its only fault, and one that had none."""
    now_s = START_S + 400 * DAY_S
    at_ns = [round((now_s - age * DAY_S) * 1e9) for age in days]
    faults = [
        Fault(worker="", node=f"n{i}", kind="exit", ts_ns=ts_ns, id=f"{i}")
        for i, ts_ns in enumerate(at_ns)
    ]
    faults.sort(key=lambda fault: fault.ts_ns)
    return view_of(workers=len(days) + 1, faults=faults, now_s=now_s, tick_s=DAY_S)


@pytest.mark.slow
def test_the_risk_falls_with_the_time_since_the_last_fault(fitted):
    just, week, old, never = fitted.forecast(ages(0.5, 8, 100)).probability
    assert just > 2 * week
    assert week > never
    assert old == pytest.approx(never, rel=0.5)


def test_its_probabilities_come_true_on_average(fitted, bursts):
    later = bursts[167:]
    predicted = np.mean([fitted.forecast(e.view).probability for e in later])
    assert predicted == pytest.approx(np.mean([e.outcome for e in later]), rel=0.25)


def test_a_horizon_twice_as_long_leaves_the_survivors_of_both_halves(fitted):
    twice = predictor(horizon_s=14 * DAY_S)
    twice.restore(fitted.parts())
    view = ages(0.5)
    one, two = fitted.forecast(view).probability, twice.forecast(view).probability
    assert 1 - two[1] == pytest.approx((1 - one[1]) ** 2), "no history: the same hazard all along"
    assert 1 - two[0] > (1 - one[0]) ** 2, "the second week is a safer one"


def test_a_horizon_of_very_many_intervals_takes_them_together(fitted):
    long, longer = predictor(horizon_s=32 * DAY_S), predictor(horizon_s=64 * DAY_S)
    for learner in (long, longer):
        learner.restore(fitted.parts())
    one, two = (learner.forecast(ages()).probability[0] for learner in (long, longer))
    assert 1 - two == pytest.approx((1 - one) ** 2)


def test_a_failure_counts_in_the_interval_it_happened_in():
    """Each worker that fails does so once: the hazard is failures by intervals survived."""
    workers, days, horizon = 300, 40, 5
    random = np.random.default_rng(2)
    failure_day = random.geometric(0.02, workers)
    examples = []
    for day in range(days):
        outcome = np.where((failure_day > day) & (failure_day <= day + horizon), 1.0, 0.0)
        outcome[failure_day <= day] = np.nan
        view = view_of(workers=workers, now_s=START_S + day * DAY_S, tick_s=DAY_S)
        examples.append(Example(view=view, outcome=outcome))
    learner = predictor(horizon_s=DAY_S)
    learner.fit(examples)
    at_risk = sum(int((failure_day > day).sum()) for day in range(days - 1))
    failures = int((failure_day <= days - 1).sum())
    predicted = learner.forecast(examples[-1].view).probability
    assert predicted == pytest.approx(np.full(workers, failures / at_risk), rel=0.02)


def test_a_sample_of_the_quiet_intervals_keeps_the_prior(bursts, fitted):
    sampled = predictor(max_healthy=2000)
    sampled.fit(bursts[:160])
    assert sampled._learned.share < 0.1
    view = ages()
    assert sampled.forecast(view).probability == pytest.approx(
        fitted.forecast(view).probability, rel=0.2
    )


@pytest.mark.slow
def test_examples_after_a_gap_are_not_an_interval(bursts):
    whole, holed = predictor(), predictor()
    whole.fit(bursts[:160])
    holed.fit(bursts[:100] + bursts[103:160])
    assert holed._learned.interval_s == whole._learned.interval_s == DAY_S
    view = ages(1, 10)
    assert holed.forecast(view).probability == pytest.approx(
        whole.forecast(view).probability, rel=0.2
    )


def test_a_metric_that_counts_hours_in_service_is_an_age():
    random = np.random.default_rng(3)
    hours = random.uniform(100, 5000, 400)
    examples = []
    for day in range(60):
        outcome = (random.random(400) < hours / 1e5).astype(float)
        view = view_of({"hours": hours}, now_s=START_S + day * DAY_S, tick_s=DAY_S)
        examples.append(Example(view=view, outcome=outcome))
    learner = predictor(metrics=("hours",), horizon_s=DAY_S)
    learner.fit(examples)
    view = view_of({"hours": [200.0, 1000.0, 4000.0, np.nan]}, tick_s=DAY_S)
    young, middle, old, unknown = learner.forecast(view).probability
    assert 3 * young < middle < old
    assert young < unknown < old


def test_the_reason_is_the_history(fitted):
    why = fitted.forecast(ages(0.5, 8)).why
    assert why == {
        0: "its node had 1 fault in the last 8 d, the latest 12 h ago",
        1: "its node had 1 fault in the last 8 d, the latest 8 d ago",
    }


def test_one_example_alone_is_nothing_to_learn_from(bursts):
    with pytest.raises(PluginError, match="survival: need a failure to learn from, was none"):
        predictor().fit(bursts[50:51])


def test_a_model_of_other_options_is_refused(fitted):
    with pytest.raises(ModelError, match=r"survival.json: need the 7 features .* was 19 of other"):
        predictor(half_lives_s=(DAY_S,)).restore(fitted.parts())
