"""Learn from telemetry and fault history which workers fail soon, with a logistic regression."""

from typing import Any, ClassVar

from torchloom_core.learning import Rows
from torchloom_core.plugin import Registry, hookimpl
from torchloom_predictors.regression import Regression, RegressionLearner, signed_log


class LogisticPredictor(RegressionLearner):
    """Weigh the features of every worker, each by its logarithm.

    A logistic regression with a ridge penalty: of what is unknown a column says so, and it counts
    as the median. What it cannot find is what only two features together tell, so that it is what
    more elaborate predictors have to beat.
    """

    name = "logistic"
    variants: ClassVar = ({"seasons_s": [86_400.0, 604_800.0]},)

    def grow(self, rows: Rows) -> Any:
        """Fit the coefficients on everything."""
        return Regression.fit(signed_log(rows.features), rows.failed, self.l2)


@hookimpl
def torchloom_register(registry: Registry) -> None:
    """Offer the predictor."""
    registry.predictor(LogisticPredictor)
