"""The comparison with LightGBM counts as the trial does."""

import os
import subprocess
import sys

import numpy as np
import pytest

from experiments.backblaze_forecasts import lightgbm_trial
from experiments.backblaze_forecasts.lightgbm_trial import MeanAuprc
from experiments.forecast_trial.trial import DAY_NS, DAY_S
from torchloom_core.evaluate.forecasts.alarms import Judged
from torchloom_core.evaluate.forecasts.labels import Incidents, Task
from torchloom_core.evaluate.forecasts.scores import auprc_of

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
    return Judged(Task(horizon_s=7 * DAY_S, repair_s=DAY_S), times_ns, DAY_S, score, outcome, NONE)


def test_the_mean_over_folds_is_the_one_that_candidates_are_chosen_by():
    folds = [judged(10, 0), judged(12, 1)]
    chosen_by = np.mean([auprc_of(fold).value for fold in folds])
    assert MeanAuprc(folds).estimate.value == pytest.approx(chosen_by, rel=1e-12)


def test_a_moment_pulls_the_mean_in_every_fold_that_it_is_in():
    folds = [judged(10, 0), judged(12, 1)]
    mean = MeanAuprc(folds)
    assert mean.estimate.pulls.sum() == pytest.approx(0.0, abs=1e-12)
    twice = MeanAuprc([folds[0], folds[0]])
    once = MeanAuprc(folds[:1])
    np.testing.assert_allclose(twice.estimate.pulls, once.estimate.pulls)
    assert mean.clusters.components == COMPONENTS


def test_nothing_is_above_itself():
    mean = MeanAuprc([judged(10, 0), judged(12, 1)])
    above = mean.clusters.difference(mean.estimate, mean.estimate)
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
