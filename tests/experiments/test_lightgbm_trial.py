"""The comparison with LightGBM counts as the trial does."""

import os
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from experiments.backblaze_forecasts import lightgbm_trial
from experiments.backblaze_forecasts.lightgbm_trial import MeanAuprc, difference
from experiments.forecast_trial.trial import DAY_NS, DAY_S, average_precision
from torchloom_core.evaluate.forecasts.alarms import Judged
from torchloom_core.evaluate.forecasts.labels import Incidents, Task

COMPONENTS = 40
NONE = Incidents(*(np.zeros(0, dtype=np.int64) for _ in Incidents.__dataclass_fields__))


def judged(from_d, seed, days=6):
    """Return a week-ahead fold whose score knows a little, with gaps in score and outcome."""
    random = np.random.default_rng(seed)
    outcome = (random.random((days, COMPONENTS)) < 0.1).astype(float)
    score = outcome + random.normal(size=outcome.shape)
    score[random.random(outcome.shape) < 0.1] = np.nan
    outcome[random.random(outcome.shape) < 0.1] = np.nan
    times_ns = (from_d + np.arange(days)) * DAY_NS
    return Judged(Task(horizon_s=7 * DAY_S), times_ns, DAY_S, score, outcome, NONE)


def test_the_mean_over_folds_is_the_one_that_candidates_are_chosen_by():
    folds = [judged(10, 0), judged(12, 1)]
    chosen_by = np.mean([average_precision(fold) for fold in folds])
    assert MeanAuprc(folds).value == pytest.approx(chosen_by, rel=1e-12)


def test_a_component_that_is_drawn_twice_counts_twice_in_every_fold():
    folds = [judged(10, 0), judged(12, 1)]
    mean = MeanAuprc(folds)
    weights = mean.blocks.weights(1, 0)
    expected = []
    for fold in folds:
        known = ~np.isnan(fold.outcome)
        drawn = np.broadcast_to(weights[0], known.shape)[known]
        said = np.nan_to_num(fold.score[known], nan=-99.0)
        expected.append(average_precision_score(fold.outcome[known], said, sample_weight=drawn))
    assert mean.blocks.count == COMPONENTS
    assert mean(weights)[0] == pytest.approx(np.mean(expected), rel=1e-12)


def test_folds_far_apart_are_drawn_by_the_week():
    mean = MeanAuprc([judged(day, day) for day in range(0, 140, 35)])
    assert mean.blocks.what == "blocks of 7 d"
    assert mean(np.ones((1, mean.blocks.count)))[0] == pytest.approx(mean.value, rel=1e-12)


def test_nothing_is_above_itself():
    mean = MeanAuprc([judged(10, 0), judged(12, 1)])
    above = difference(mean, mean, 0)
    assert (above.value, above.low, above.high) == (0.0, 0.0, 0.0)


@pytest.mark.integration
def test_without_lightgbm_or_the_data_one_line_says_what_is_needed(tmp_path):
    done = subprocess.run(
        [sys.executable, lightgbm_trial.__file__],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHLOOM_DATA": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("need ")
    assert done.stdout.count("\n") == 1
    assert not done.stderr
