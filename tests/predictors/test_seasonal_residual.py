import re
import tracemalloc
from typing import ClassVar

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from torchloom_core.lab.learning import MeasuredSteps
from torchloom_core.plugin import Example, ModelError
from torchloom_core.testing import LearnerContract, view_of
from torchloom_predictors.seasonal_residual import SeasonalResidualPredictor, _score

Options = SeasonalResidualPredictor.Options
HOUR_S, DAY_S = 3600.0, 86_400.0
START_S = 1_700_006_400.0  # midnight


@pytest.mark.slow
class TestContract(LearnerContract):
    predictor_class = SeasonalResidualPredictor
    supervised = False
    options: ClassVar = {"metrics": ["a", "b"], "seasons_s": [8], "step_s": 1, "every_s": 1}


@pytest.mark.slow
class TestContractWithTwoSeasons(LearnerContract):
    predictor_class = SeasonalResidualPredictor
    supervised = False
    options: ClassVar = {"metrics": ["a"], "seasons_s": [8, 4], "step_s": 1, "every_s": 1}


@pytest.mark.slow
class TestContractWithALevelThatIsFollowed(LearnerContract):
    predictor_class = SeasonalResidualPredictor
    supervised = False
    options: ClassVar = {
        "metrics": ["a"],
        "seasons_s": [8],
        "step_s": 1,
        "every_s": 1,
        "follow_s": 6,
    }


@pytest.mark.slow
class TestContractWithTheFarthestMetricAlone(LearnerContract):
    predictor_class = SeasonalResidualPredictor
    supervised = False
    options: ClassVar = {
        "metrics": ["a", "b"],
        "seasons_s": [],
        "step_s": 1,
        "every_s": 1,
        "combine": "max",
    }


def predictor(**options):
    wanted = {"metrics": ("load",), "step_s": HOUR_S, "every_s": HOUR_S, "horizon_s": HOUR_S}
    return SeasonalResidualPredictor(SeasonalResidualPredictor.Options(**{**wanted, **options}))


def load(hours, workers=3, seed=0):
    """Return ``(workers, hours)`` that come and go with the day, each at a height of its own."""
    random = np.random.default_rng(seed)
    day = 10 * np.sin(2 * np.pi * np.arange(hours) / 24)
    return 50 + 20 * np.arange(workers)[:, None] + day + random.normal(size=(workers, hours))


def view(values, hour, **more):
    return view_of(
        {"load": values}, now_s=START_S + hour * HOUR_S, tick_s=HOUR_S, stale_after_s=DAY_S, **more
    )


def examples(values, outcome=np.nan):
    """Return an example an hour; of ``outcome`` each worker has the same."""
    return [
        Example(view=view(values[:, hour], hour), outcome=np.full(len(values), outcome))
        for hour in range(values.shape[1])
    ]


def fitted(values, **options):
    learner = predictor(**options)
    learner.fit(examples(values))
    return learner


def test_what_is_usual_by_day_is_unusual_by_night():
    learner = fitted(load(240))
    noon, midnight = 240 + 6, 240 + 18  # top and bottom of the wave
    high, low = np.array([60.0, 80.0, 100.0]), np.array([40.0, 60.0, 80.0])
    for usual, hour in ((high, noon), (low, midnight)):
        assert (learner.forecast(view(usual, hour)).probability < 0.1).all()
    for unusual, hour in ((low, noon), (high, midnight)):
        assert (learner.forecast(view(unusual, hour)).probability > 0.99).all()


def test_the_reason_names_the_metric_and_its_deviation():
    learner = fitted(load(240, workers=1))
    why = learner.forecast(view([40.0], 246)).why
    assert list(why) == [0]
    assert why[0].startswith("load was 40, ")
    assert re.search(r" times its spread from the (59|60)\.\d+ that is usual", why[0])


def test_without_two_seasons_there_is_a_level_and_no_profile():
    learner = fitted(load(40))
    assert learner._learned.seasons_s == ()
    assert learner.forecast(view([50.0, 70.0, 90.0], 40)).probability.max() < 0.5
    assert learner.forecast(view([150.0, 70.0, 90.0], 40)).probability[0] > 0.9


def test_a_worker_that_came_later_is_compared_with_the_others():
    learner = fitted(load(240))
    probability = learner.forecast(view([60.0, 80.0, 100.0, 80.0, 300.0], 246)).probability
    assert (probability[:4] < 0.2).all()
    assert probability[4] > 0.99


def test_gaps_neither_stop_it_nor_are_judged():
    values = load(240)
    values[np.random.default_rng(1).random(values.shape) < 0.3] = np.nan
    learner = fitted(values)
    probability = learner.forecast(view([np.nan, 80.0, 100.0], 246)).probability
    assert np.isnan(probability).tolist() == [True, False, False]
    assert (probability[1:] < 0.2).all()


def test_one_metric_gone_wild_counts_no_more_than_the_cap():
    learner = fitted(load(240, workers=1), cap=5.0)
    ten, thousand = (learner.forecast(view([x], 246)).probability[0] for x in (90.0, 1e9))
    assert ten == thousand


def test_the_farthest_metric_alone_may_count():
    known = Options(metrics=("a", "b"), combine="max", cap=100.0)
    off = np.array([[3.0, -8.0], [np.nan, 2.0], [np.nan, np.nan], [200.0, 0.0]])
    np.testing.assert_array_equal(_score(off, known), [8.0, 2.0, np.nan, 100.0])
    mean = _score(off, Options(metrics=("a", "b"), cap=100.0))
    np.testing.assert_allclose(mean[:2], [np.sqrt((9 + 64) / 2), 2.0])


def test_a_level_that_moved_for_good_becomes_usual_where_it_is_followed():
    values = load(300, workers=1)
    values[:, 240:] += 100
    for follow_s, after_a_day in ((0.0, True), (DAY_S, False)):
        learner = fitted(values[:, :240], follow_s=follow_s)
        predicted = [
            learner.forecast(view(values[:, hour - 24 : hour + 1], hour)).probability[0] > 0.99
            for hour in (241, 280)
        ]
        assert predicted == [True, after_a_day]


@pytest.mark.slow
def test_about_a_share_rare_of_what_it_learned_from_is_above_one_half():
    values = load(480)
    learner = fitted(values, rare=0.05)
    predicted = [learner.forecast(example.view).probability for example in examples(values)]
    assert np.mean(np.array(predicted) > 0.5) == pytest.approx(0.05, abs=0.01)


def test_moments_before_a_failure_do_not_become_usual():
    values = load(240, workers=1)
    values[:, 120:] += 100
    learned = examples(values[:, :120]) + [
        Example(view=view(values[:, hour], hour), outcome=np.ones(1)) for hour in range(120, 240)
    ]
    learner = predictor()
    learner.fit(learned)
    assert learner.forecast(view([160.0], 246)).probability[0] > 0.99


def test_faults_it_never_saw_stand_out_in_later_time():
    values = load(480, workers=6, seed=3)
    learner = fitted(values[:, :300])
    random = np.random.default_rng(4)
    wrong = random.random((6, 180)) < 0.05
    later = values[:, 300:] + 6 * wrong * random.choice([-1, 1], size=wrong.shape)
    predicted = [learner.forecast(view(later[:, i], 300 + i)).probability for i in range(180)]
    assert average_precision_score(wrong.T.ravel(), np.ravel(predicted)) > 0.9


def test_a_model_of_other_metrics_is_refused():
    with pytest.raises(ModelError, match="need the options' metrics heat, was load"):
        predictor(metrics=("heat",)).restore(fitted(load(30)).parts())


def rare_examples(workers=100, months=20):
    """Yield an example a day of workers that measure something once in 30 days."""
    random = np.random.default_rng(0)
    nothing = np.full(workers, np.nan)
    for day in range(30 * months):
        values = random.normal(size=workers) if day % 30 == 0 else nothing
        shown = view_of({"load": values}, now_s=START_S + day * DAY_S, tick_s=DAY_S)
        yield Example(view=shown, outcome=np.zeros(workers))


@pytest.mark.slow
def test_memory_follows_the_values_and_not_the_steps_between_them():
    learner = predictor(step_s=900.0, every_s=300.0)
    tracemalloc.start()
    try:
        learner.fit(rare_examples())
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes < 30e6  # laid out in steps of 900 s it is 46 MB, several times
    assert not learner._learned.seasons_s
    shown = view_of({"load": [0.0, 40.0]}, now_s=START_S, tick_s=DAY_S)
    usual, odd = learner.forecast(shown).probability
    assert usual < 0.5 < odd


def test_steps_without_values_take_no_memory():
    table = np.full((50, 4, 2), np.nan)
    table[3, 1, 0], table[49, 3] = 7.0, (8.0, 9.0)
    past = MeasuredSteps.of(table)
    assert (past.shape, len(past)) == ((50, 4, 2), 2)
    blocks = [past.table(first, end) for first, end in past.blocks()]
    assert np.array_equal(np.concatenate(blocks, axis=1), table, equal_nan=True)
