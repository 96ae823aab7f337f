"""Every built-in predictor passes the contract it is shipped with."""

import numpy as np
import pytest

from torchloom_core.testing import PredictorContract
from torchloom_predictors.ewma import EwmaPredictor
from torchloom_predictors.fault_history import FaultHistoryPredictor
from torchloom_predictors.trend import TrendPredictor


class TestEwma(PredictorContract):
    predictor_class = EwmaPredictor


class TestTrend(PredictorContract):
    predictor_class = TrendPredictor


class TestFaultHistory(PredictorContract):
    predictor_class = FaultHistoryPredictor


@pytest.mark.parametrize("contract", [TestEwma, TestTrend, TestFaultHistory])
def test_the_story_makes_every_builtin_predictor_worry_about_someone(contract):
    test = contract()
    worst = [np.nanmax(hazard.probability) for hazard in test.run(test.views())]
    assert max(worst) > 0.01
