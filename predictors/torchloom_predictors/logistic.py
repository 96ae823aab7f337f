"""Predict failures from telemetry and fault history with a logistic regression."""

from typing import Any, ClassVar

from torchloom_core.lab.learning import Rows
from torchloom_core.plugin import Registry, hookimpl
from torchloom_predictors.regression import Regression, RegressionLearner, signed_log


class LogisticPredictor(RegressionLearner):
    """Fit a logistic regression on the signed logarithms of the features.

    It has a ridge penalty; an unknown value counts as the median, with an indicator column. It
    cannot learn interactions of features, and is a baseline for predictors that can.
    """

    name = "logistic"
    variants: ClassVar = ({"seasons_s": [86_400.0, 604_800.0]},)

    def grow(self, rows: Rows) -> Any:
        """Fit the coefficients on all rows."""
        return Regression.fit(signed_log(rows.features), rows.failed, self.options.l2)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Register the predictor."""
    registry.predictor(LogisticPredictor)
