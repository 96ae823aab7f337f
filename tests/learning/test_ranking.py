"""Precision, recall and their average equal those of scikit-learn, and take less time."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, precision_recall_curve

from torchloom_core.lab.learning.ranking import Ranking, precision_and_recall

SCORES = arrays(np.float64, 12, elements=st.sampled_from([-2.0, 0.0, 0.5, 0.6, 7.0]))
POSITIVES = arrays(np.bool_, 12).map(lambda those: those | (np.arange(12) == 5))


@settings(max_examples=60)
@given(score=SCORES, positive=POSITIVES)
def test_the_average_precision_is_that_of_scikit_learn(score, positive):
    found = Ranking.of(score, positive).average_precision
    assert found == pytest.approx(average_precision_score(positive, score))


@settings(max_examples=60)
@given(score=SCORES, positive=POSITIVES)
def test_precision_and_recall_are_those_of_scikit_learn(score, positive):
    expected = precision_recall_curve(positive, score)
    found = precision_and_recall(score, positive)
    for own, (*theirs, _) in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_array_equal(own, theirs)
    np.testing.assert_array_equal(found[2], expected[2])


@settings(max_examples=60)
@given(score=SCORES, positive=POSITIVES)
def test_the_level_of_a_sample_is_how_many_thresholds_are_above_it(score, positive):
    found = Ranking.of(score, positive)
    thresholds = np.unique(score[positive])
    assert found.threshold.tolist() == thresholds[::-1].tolist()
    assert found.level.tolist() == [(thresholds > one).sum() for one in score]


def test_without_a_positive_one_the_average_precision_is_0():
    assert Ranking.of(np.array([0.5, 0.1]), np.zeros(2, dtype=bool)).average_precision == 0.0


WORK = """
import sys
import numpy as np
import torchloom_core.lab.fitting.fit
import torchloom_core.lab.trace.describe.describe
from torchloom_core.lab.evaluate.over_fleets import mean_over_fleets
from torchloom_core.lab.evaluate.forecasts.intervals import (
    Clusters, Estimate, exact_rate, exact_share,
)
from torchloom_core.lab.fitting.examples import suspicious_features
from torchloom_core.lab.learning.ranking import roc_auc
from torchloom_predictors.regression import Regression

numbers = np.arange(90.0)
exact_rate(3, 7.0), exact_share(3, 5), mean_over_fleets([0.1, 0.2, 0.4], 3)
roc_auc(numbers, numbers + 5), suspicious_features(numbers[:, None], numbers > 70, ["it"])
days_ns = np.arange(9) * 86_400 * 10**9
Clusters(days_ns, np.ones((9, 10), dtype=bool), 60.0).share(Estimate(0.5, numbers - numbers.mean()))
Regression.fit(numbers[:, None], numbers > 70, l2=1.0)
heavy = {"sklearn", "scipy.stats", "statsmodels", "torchloom_core.lab.simulate"}
print(sorted(heavy.intersection(sys.modules)))
"""


@pytest.mark.integration
def test_no_score_and_no_baseline_waits_for_a_library_of_statistics():
    ran = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
